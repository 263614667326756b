// The page: what is chosen, and what happens when that changes.

const data = JSON.parse(document.getElementById("data").textContent);
const source = data.looks ? staticSource(data) : liveSource(data);
const $ = (id) => document.getElementById(id);
const PAUSE = 120; // milliseconds without a move of the slider before the network is asked
const LONG = 250; // milliseconds after which waiting is worth a word

const state = {
  rate: data.rates.indexOf(data.trainedRate),
  images: { A: data.images[0], B: null },
  next: "A", // which of them a choice fills
};
const thumbs = new Map();
const grids = data.layers.map((layer) => new Grid(layer, tellCell));
let asked = 0; // counts refreshes: an answer to an older one is not shown
let shown = null; // the last answers, to be drawn again when the window changes

function tellCell(text) {
  $("readout").hidden = text === null;
  if (text !== null) $("readout").textContent = text;
}

function tellError(error) {
  $("error").hidden = !error;
  $("error").textContent = error ? error.message : "";
}

// Whether the answers on show are not those to what is chosen.
function markOld(isOld) {
  document.body.classList.toggle("old", isOld);
}

function sizeOf(layer) {
  return layer.heads * layer.channels;
}

async function lookAt(image) {
  if (!image) return null;
  const look = await source.look(image, state.rate);
  const masks = data.layers.map((layer, i) => unpackMask(look.kept[i], sizeOf(layer)));
  const total = (values) => values.reduce((sum, value) => sum + value, 0);
  return { image, look, masks, keptShare: total(masks.map(countKept)) / total(data.layers.map(sizeOf)) };
}

// Asks for whatever is chosen now and shows it: first the predictions, then the average image.
async function refresh() {
  const number = ++asked;
  const isStale = () => number !== asked;
  const { rate, images } = state;
  let isAnswered = false;
  const slow = setTimeout(() => {
    if (isStale() || isAnswered) return;
    const isTrained = data.rates[rate] === data.trainedRate;
    $("status").textContent = isTrained ? "working …" : "getting ready for this rate …";
    markOld(true);
  }, LONG);
  try {
    const [a, b] = await Promise.all([lookAt(images.A), lookAt(images.B)]);
    if (isStale()) return;
    isAnswered = true;
    show({ a, b, average: null });
    $("status").textContent = source.upload ? "averaging test images …" : "";
    const average = await source.average(rate);
    if (isStale()) return;
    show({ a, b, average });
    $("status").textContent = "";
    learnWorth();
  } catch (error) {
    if (!isStale()) {
      tellError(error);
      $("status").textContent = "";
      markOld(!isAnswered);
    }
  } finally {
    clearTimeout(slow);
  }
}

// What it is worth to each layer to look at the image: it takes a while to find out, and is asked for once.
let isWorthAsked = false;
async function learnWorth() {
  if (isWorthAsked) return;
  isWorthAsked = true;
  try {
    const { images, layers } = await source.worth();
    grids.forEach((grid, i) => grid.tellWorth(layers[i], images));
  } catch (error) {
    tellError(error);
  }
}

function show(answers) {
  shown = answers;
  markOld(false);
  const { a, b, average } = answers;
  fillCard($("card-A"), "A", a, data.denseMacs);
  const hadFocus = $("card-B").contains(document.activeElement); // its button is made anew
  if (b) fillCard($("card-B"), "B", b, data.denseMacs, () => choose(null, "B"));
  else emptyCard($("card-B"), startComparing);
  if (hadFocus) $("card-B").querySelector("button").focus();
  $("channels-title").textContent = b ? "The channels they chose" : "The channels it chose";
  makeLegend($("legend"), b ? "pair" : "single");
  grids.forEach((grid, i) => {
    grid.show(a.masks[i], b && b.masks[i], average && bytesOf(average.kept[i]), average?.images);
  });
  summarize(a, b, average);
  $("answers").replaceChildren(...[a, b].filter(Boolean).map(inShort)); // in sight while one looks at layers
  document.body.dataset.rate = data.rates[state.rate]; // what is on show, for whoever automates this page
  document.body.dataset.average = average ? average.images : "";
}

function inShort({ look }, place) {
  const [name, probability] = look.top[0];
  const letter = "AB"[place];
  const text = `${letter}: ${name} · ${formatPercent(probability)} · ${formatMacs(look.macs)} MACs`;
  return element("span", { className: letter }, text);
}

// How much the choice depends on the image, in plain words.
function dependence({ images, sameForAll }) {
  const much = sameForAll > 0.9 ? "hardly depends" : sameForAll > 0.5 ? "partly depends" : "depends";
  return (
    `What is chosen ${much} on the image: in ${formatPercent(sameForAll)} of all places, a channel in a head, ` +
    `this network makes the same choice for each of ${images} images.`
  );
}

function summarize(a, b, average) {
  const text = [];
  if (b) {
    const indices = data.layers.map((layer, i) => overlap(a.masks[i], b.masks[i], layer.heads));
    const all = mean(indices.filter((index) => index !== null));
    text.push("Overlap ", element("strong", { id: "overlap" }, all === null ? "none" : all.toFixed(3)));
    text.push(": of the channels that A or B keeps, the share that both keep, averaged over heads and layers. ");
  } else {
    text.push("Rows are heads, columns are input channels. Each head convolves the channels it keeps, and no others. ");
  }
  text.push(
    average
      ? `${dependence(average)} ` +
        `Average image: ${average.images} of the ${data.testImages.toLocaleString("en")} test images, at the same rate.`
      : "The average image is not known yet.",
  );
  $("summary").replaceChildren(...text);
}

// Puts an image into A or B, or with null takes B away.
function choose(image, slot = state.next) {
  tellError(null);
  state.images = { ...state.images, [slot]: image };
  expect(slot === "B" && !image ? "A" : slot);
  markThumbs();
  refresh();
}

function startComparing() {
  expect("B");
  thumbs.values().next().value.focus();
}

// The next choice goes to A or to B.
function expect(slot) {
  state.next = slot;
  document.querySelector(`input[name=slot][value=${slot}]`).checked = true;
}

function markThumbs() {
  for (const [id, thumb] of thumbs) {
    const slots = ["A", "B"].filter((slot) => state.images[slot]?.id === id);
    thumb.className = ["thumb", ...slots.map((slot) => `in-${slot}`)].join(" ");
    thumb.setAttribute("aria-pressed", String(slots.length > 0));
  }
}

function addThumb(image) {
  if (thumbs.has(image.id)) return;
  const label = image.label === null ? image.name : `${image.name}, labelled ${image.label}`;
  const thumb = element(
    "button",
    { type: "button", title: label, onclick: () => choose(image) },
    element("img", { src: image.picture, alt: label }),
  );
  thumbs.set(image.id, thumb);
  $("strip").append(thumb);
}

// An image that has to be asked for first: a file, or a test image by number.
async function bring(promise) {
  try {
    const image = await promise;
    addThumb(image);
    choose(image);
    thumbs.get(image.id).scrollIntoView({ block: "nearest", inline: "nearest" });
  } catch (error) {
    tellError(error);
  }
}

function setRate(rate) {
  state.rate = rate;
  const value = data.rates[rate];
  $("rate").value = rate;
  $("rate").setAttribute("aria-valuetext", formatRate(value));
  $("rate-value").textContent = formatRate(value);
  const others =
    data.gate === "global"
      ? `one threshold and batch norms found anew on ${data.calibration} training images`
      : `batch norms adapted on ${data.calibration} training images`;
  $("rate-note").textContent = value === data.trainedRate ? "as trained" : others;
}

function listenToBudget() {
  let pause;
  $("rate").max = data.rates.length - 1;
  $("trained").append(element("option", { value: state.rate })); // browsers mark it on the slider
  $("rate").addEventListener("input", () => {
    setRate(Number($("rate").value));
    clearTimeout(pause);
    pause = setTimeout(() => {
      tellError(null);
      refresh();
    }, PAUSE);
  });
}

function listenToUploads() {
  $("file").addEventListener("change", () => {
    if ($("file").files.length) bring(source.upload($("file").files[0]));
    $("file").value = ""; // the same file again is a choice, too
  });
  $("by-number").addEventListener("submit", (event) => {
    event.preventDefault();
    bring(source.image($("number").value.trim()));
  });
  window.addEventListener("dragover", (event) => {
    event.preventDefault();
    $("drop").hidden = false;
  });
  window.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) $("drop").hidden = true;
  });
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    $("drop").hidden = true;
    if (event.dataTransfer.files.length) bring(source.upload(event.dataTransfer.files[0]));
  });
}

function listenToWindow() {
  const redraw = () => grids.forEach((grid) => shown && grid.draw());
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

function start() {
  const gate = data.gate === "global" ? "one threshold for all layers" : "as many channels in every head";
  $("run").textContent = data.run;
  const layers = `${data.layers.length} dynamic layers, ${gate}`;
  $("about").textContent = `${data.model} · ${data.data} · ${layers} · MACs by the ‘paper’ convention`;
  for (const control of document.querySelectorAll(".live")) control.hidden = !source.upload;
  data.images.forEach(addThumb);
  $("layers").append(...grids.map((grid) => grid.section));
  for (const radio of document.getElementsByName("slot")) radio.addEventListener("change", () => expect(radio.value));
  listenToBudget();
  if (source.upload) listenToUploads();
  listenToWindow();
  markThumbs();
  setRate(state.rate);
  refresh();
}

start();
