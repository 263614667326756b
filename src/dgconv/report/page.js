"use strict";

// Light and dark: as the system has it, until the switch is used.
const root = document.documentElement;
const themeSwitch = document.getElementById("theme");
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return (root.dataset.theme ?? (systemIsDark.matches ? "dark" : "light")) === "dark";
}

function labelSwitch() {
  themeSwitch.textContent = isDark() ? "Light" : "Dark";
  themeSwitch.setAttribute("aria-pressed", String(isDark()));
}

function remembered(theme) {
  try {
    if (theme) localStorage.setItem("dgconv-theme", theme);
    return localStorage.getItem("dgconv-theme");
  } catch {
    return null; // a browser that keeps nothing for files
  }
}

if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
themeSwitch.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  remembered(root.dataset.theme);
  labelSwitch();
});
systemIsDark.addEventListener("change", labelSwitch);
labelSwitch();

// Tables: a click on a header sorts by it, another one the other way round. Empty cells stay at the end.
function sortBy(header) {
  const table = header.closest("table");
  const isNumber = header.dataset.kind === "number";
  const first = isNumber ? "descending" : "ascending";
  const second = isNumber ? "ascending" : "descending";
  const order = header.getAttribute("aria-sort") === first ? second : first;
  for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", order);

  const valueOf = (row) => {
    const cell = row.cells[header.cellIndex];
    if (!isNumber) return cell.textContent.trim();
    return cell.dataset.value === undefined ? "" : Number(cell.dataset.value);
  };
  const compare = (a, b) => (isNumber ? a - b : a.localeCompare(b, "en", { numeric: true }));
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row), row]);
  rows.sort(([a], [b]) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    return order === "ascending" ? compare(a, b) : compare(b, a);
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const button of document.querySelectorAll(".sortable thead button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// Figures: larger, and small again.
for (const button of document.querySelectorAll(".picture")) {
  button.addEventListener("click", () => {
    const isWide = button.closest("figure").classList.toggle("wide");
    button.setAttribute("aria-expanded", String(isWide));
  });
}

// Curves: a line that follows the pointer or the arrow keys, and the values at its epoch.
const { runs, charts } = JSON.parse(document.getElementById("chart-data").textContent);

function showEpoch(svg, chart, epoch) {
  const x = chart.left + ((chart.right - chart.left) * epoch) / chart.lastEpoch;
  const cursor = svg.querySelector(".cursor");
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
  svg.dataset.epoch = epoch;
  const values = chart.curves.flatMap((curve) => {
    const value = curve.values[curve.epochs.indexOf(epoch)];
    if (value === null || value === undefined) return [];
    const names = [runs.length > 1 ? runs[curve.run] : "", curve.label].filter(Boolean).join(", ");
    return [`${names} ${Number(value.toPrecision(4))}`.trim()];
  });
  svg.closest("figure").querySelector("output").textContent = `epoch ${epoch}: ${values.join(" · ") || "no values"}`;
}

function hideEpoch(svg) {
  const cursor = svg.querySelector(".cursor");
  cursor.setAttribute("x1", -9);
  cursor.setAttribute("x2", -9);
  svg.closest("figure").querySelector("output").textContent = "";
}

for (const svg of document.querySelectorAll("[data-chart]")) {
  const chart = charts[svg.dataset.chart];
  const inRange = (epoch) => Math.min(chart.lastEpoch, Math.max(1, epoch));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    showEpoch(svg, chart, inRange(Math.round(((x - chart.left) / (chart.right - chart.left)) * chart.lastEpoch)));
  });
  svg.addEventListener("pointerleave", () => hideEpoch(svg));
  svg.addEventListener("blur", () => hideEpoch(svg));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    showEpoch(svg, chart, inRange(Number(svg.dataset.epoch ?? 0) + step));
  });
}
