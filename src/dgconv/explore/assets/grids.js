// One grid a layer: a row for each head, a column for each input channel.

const ROW = 13; // pixels: the choice
const STRIP = 4; // below it: how many test images keep the channel
const GAP = 5; // to the next head
const GUTTER = 18; // left: the number of the head
const NARROWEST = 2;
const WIDEST = 16;
const MANY = 64; // channels: a layer with more takes the whole width

const USUAL = 0.5; // of the images: from there on a channel counts as one that most keep

// What the cell of a channel means, by what is shown: the first whose `is` holds of the choices of A and B and the
// share of the test images that keep it.
const MEANINGS = {
  single: [
    { is: (a, b, share) => a && (share === null || share >= USUAL), colour: "--a", text: "kept, as by most images" },
    { is: (a) => a, colour: "--unusual", text: "kept, though most images leave it out" },
    {
      is: (a, b, share) => share !== null && share >= USUAL,
      colour: "--unusual",
      hollow: true,
      text: "left out, though most images keep it",
    },
    { is: () => true, colour: "--empty", text: "left out, as by most images" },
  ],
  pair: [
    { is: (a, b) => a && b, colour: "--both", text: "both keep it" },
    { is: (a) => a, colour: "--a", text: "only A keeps it" },
    { is: (a, b) => b, colour: "--b", text: "only B keeps it" },
    { is: () => true, colour: "--empty", text: "neither keeps it" },
  ],
};

function colourOf(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

function makeLegend(list, kind) {
  const entries = MEANINGS[kind].map(({ colour, hollow, text }) => {
    const swatch = element("i");
    if (hollow) swatch.style.border = `2px solid var(${colour})`;
    else swatch.style.background = `var(${colour})`;
    return element("li", {}, swatch, text);
  });
  const swatch = element("i");
  swatch.style.background = "linear-gradient(90deg, var(--empty), var(--average))";
  list.replaceChildren(...entries, element("li", {}, swatch, "thin strip: how many test images keep it"));
}

// Draws a layer on a canvas and lets a pointer or the arrow keys ask for single cells.
class Grid {
  constructor(layer, tell) {
    this.layer = layer;
    this.tell = tell; // called with a text, or null
    this.cursor = null; // [head, channel]
    this.title = element("h3", {}, layer.name);
    this.facts = element("p");
    this.worth = element("p", { className: "worth" });
    this.canvas = element("canvas", { tabIndex: 0 });
    this.canvas.setAttribute("role", "img");
    this.box = element("div", { className: "scroll" }, this.canvas);
    this.section = element(
      "section",
      { className: layer.channels > MANY ? "layer wide" : "layer" },
      element("div", { className: "facts" }, this.title, this.facts, this.worth),
      this.box,
    );
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.moveTo(null));
    this.canvas.addEventListener("click", (event) => this.point(event)); // a tap, too, after its pointer has left
    this.canvas.addEventListener("blur", () => this.moveTo(null));
    this.canvas.addEventListener("focus", () => {
      if (this.canvas.matches(":focus-visible")) this.moveTo(this.cursor ?? [0, 0]);
    });
    this.canvas.addEventListener("keydown", (event) => this.step(event));
  }

  // By how many points the error of some test images rises if the layer does not look at the image.
  tellWorth([choice, gate], images) {
    const points = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
    this.worth.textContent = `error with one choice for all images ${points(choice)}, with one gate ${points(gate)}`;
    this.worth.title = `points, of ${images} test images, at the rate of the training`;
  }

  // a, b: masks (b may be null); average: counts of `images` test images, or null while they are not known
  show(a, b, average, images) {
    Object.assign(this, { a, b, average, images });
    this.facts.textContent = this.describe();
    this.canvas.setAttribute("aria-label", `${this.layer.name}: ${this.facts.textContent}. Arrow keys move.`);
    this.draw();
  }

  describe() {
    const { heads, channels } = this.layer;
    const size = heads * channels;
    const text = [`${heads} ${heads > 1 ? "heads" : "head"} × ${channels} channels`];
    if (this.b) {
      const index = overlap(this.a, this.b, heads);
      text.push(`overlap ${index === null ? "none kept" : index.toFixed(2)}`);
    } else {
      text.push(`keeps ${formatPercent(countKept(this.a) / size)}`);
      if (this.average) {
        const unusual = this.a.filter((kept, i) => kept !== Number(this.share(i) >= USUAL)).length;
        text.push(`${formatPercent(unusual / size)} unlike most images`);
      }
    }
    return text.join(" · ");
  }

  share(i) {
    return this.average ? this.average[i] / this.images : null;
  }

  meaning(i) {
    const share = this.share(i);
    return MEANINGS[this.b ? "pair" : "single"].find((meaning) => meaning.is(this.a[i], this.b?.[i], share));
  }

  draw() {
    const { heads, channels } = this.layer;
    const room = this.box.clientWidth - GUTTER;
    this.cell = Math.max(NARROWEST, Math.min(WIDEST, Math.floor(room / channels)));
    const width = GUTTER + channels * this.cell;
    const height = heads * (ROW + STRIP + GAP);
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    const colours = Object.fromEntries(
      ["--a", "--b", "--both", "--unusual", "--empty", "--average", "--soft", "--ink"].map((name) => [name, colourOf(name)]),
    );
    const inner = this.cell > 4 ? this.cell - 1 : this.cell;
    for (let head = 0; head < heads; head++) {
      const top = head * (ROW + STRIP + GAP);
      pen.fillStyle = colours["--soft"];
      pen.fillText(String(head + 1), 2, top + 11);
      for (let channel = 0; channel < channels; channel++) {
        this.drawCell(pen, colours, head * channels + channel, GUTTER + channel * this.cell, top, inner);
      }
    }
    if (this.cursor) {
      const [head, channel] = this.cursor;
      pen.strokeStyle = colours["--ink"];
      pen.lineWidth = 2;
      pen.strokeRect(GUTTER + channel * this.cell - 1, head * (ROW + STRIP + GAP), inner + 2, ROW + STRIP + 1);
    }
  }

  drawCell(pen, colours, i, x, y, width) {
    const { colour, hollow } = this.meaning(i);
    pen.fillStyle = hollow ? colours["--empty"] : colours[colour];
    pen.fillRect(x, y, width, ROW);
    if (hollow && width > 3) {
      pen.strokeStyle = colours[colour];
      pen.lineWidth = 1.5;
      pen.strokeRect(x + 0.75, y + 0.75, width - 1.5, ROW - 1.5);
    } else if (hollow) {
      pen.fillStyle = colours[colour];
      pen.fillRect(x, y + ROW - 4, width, 4);
    }
    if (this.average) {
      pen.globalAlpha = this.share(i);
      pen.fillStyle = colours["--average"];
      pen.fillRect(x, y + ROW + 1, width, STRIP - 1);
      pen.globalAlpha = 1;
    }
  }

  point(event) {
    const channel = Math.floor((event.offsetX - GUTTER) / this.cell);
    const head = Math.floor(event.offsetY / (ROW + STRIP + GAP));
    const inside = channel >= 0 && channel < this.layer.channels && head >= 0 && head < this.layer.heads;
    this.moveTo(inside ? [head, channel] : null);
  }

  step(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [head, channel] = this.cursor ?? [0, 0];
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    const [down, right] = moves[event.key];
    this.moveTo([within(head + down, this.layer.heads), within(channel + right, this.layer.channels)]);
    const x = GUTTER + this.cursor[1] * this.cell;
    const { scrollLeft, clientWidth } = this.box;
    if (x < scrollLeft + GUTTER || x > scrollLeft + clientWidth - GUTTER) this.box.scrollLeft = x - clientWidth / 2;
  }

  moveTo(cursor) {
    if (String(cursor) === String(this.cursor)) return;
    this.cursor = cursor;
    this.draw();
    if (!cursor) return this.tell(null);
    const i = cursor[0] * this.layer.channels + cursor[1];
    const share = this.share(i);
    const average = share === null ? "" : ` · ${formatPercent(share)} of the test images keep it`;
    this.tell(`${this.layer.name} · head ${cursor[0] + 1}, channel ${cursor[1]}: ${this.meaning(i).text}${average}`);
  }
}
