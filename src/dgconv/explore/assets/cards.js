// The two cards: an image, what the network takes it for, and what that cost.

// An element with properties, and children that are elements or text; text is never read as HTML.
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function formatMacs(macs) {
  const [unit, name] = macs >= 999.5e6 ? [1e9, "G"] : [1e6, "M"]; // where three digits round up to the next unit
  return `${(macs / unit).toPrecision(3)} ${name}`;
}

function formatPercent(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;
}

// With two decimals, or as many as tell it from its neighbours, up to four.
function formatRate(rate) {
  const short = rate.toFixed(2);
  return Math.abs(short - rate) < 1e-4 ? short : String(Number(rate.toFixed(4)));
}

function bar(share) {
  const fill = element("i");
  fill.style.width = `${100 * Math.min(1, share)}%`;
  return element("div", { className: "bar", ariaHidden: "true" }, fill);
}

function verdict(image, top) {
  if (image.label === null) return element("p", { className: "verdict" }, "your own, so nobody says what is right");
  const right = image.label === top[0][0];
  return element(
    "p",
    { className: `verdict ${right ? "right" : "wrong"}` },
    right ? `✓ right: it is labelled ${image.label}` : `✗ wrong: it is labelled ${image.label}`,
  );
}

function topClasses(top) {
  const rows = top.map(([name, probability]) =>
    element(
      "li",
      {},
      element("span", { className: "name", title: name }, name),
      bar(probability),
      element("span", { className: "percent" }, formatPercent(probability)),
    ),
  );
  return element("ol", { className: "top" }, ...rows);
}

function cost(look, denseMacs, keptShare) {
  const exact = `${Math.round(look.macs).toLocaleString("en")} MACs`;
  const line = element(
    "p",
    {},
    element("strong", { className: "macs", title: exact }, `${formatMacs(look.macs)} MACs`),
    element(
      "span",
      { className: "of" },
      `${formatPercent(look.macs / denseMacs)} of the dense ${formatMacs(denseMacs)} · ` +
        `${formatPercent(keptShare)} of the channels`,
    ),
    element(
      "span",
      { className: "time", title: "of the prepared network, on one thread of this machine's CPU" },
      `${look.milliseconds.toPrecision(3)} ms`,
    ),
  );
  return element("div", { className: "cost" }, line, bar(look.macs / denseMacs));
}

// onRemove: what the button in the corner does; without it there is none.
function fillCard(card, letter, { image, look, keptShare }, denseMacs, onRemove) {
  const heading = element(
    "h3",
    {},
    element("span", { className: "letter" }, letter),
    element("span", { className: "name", title: image.name }, image.name),
  );
  if (onRemove) heading.append(element("button", { type: "button", onclick: onRemove }, "Remove"));
  card.classList.remove("empty");
  card.replaceChildren(
    heading,
    element("img", { className: "big", src: image.picture, alt: image.name }),
    element("div", {}, topClasses(look.top), verdict(image, look.top)),
    cost(look, denseMacs, keptShare),
  );
}

function emptyCard(card, onChoose) {
  card.classList.add("empty");
  card.replaceChildren(
    element("p", { className: "verdict" }, "Two images, side by side:"),
    element("button", { type: "button", id: "compare", onclick: onChoose }, "Compare with a second image"),
  );
}
