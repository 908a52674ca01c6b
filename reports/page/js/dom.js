// Make nodes. Text becomes text nodes, never markup: a text from a test cannot become part of the page.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "text") node.textContent = value;
    else if (name === "style")
      for (const [key, setting] of Object.entries(value)) node.style.setProperty(key, setting);
    else node.setAttribute(name, value === true ? "" : String(value));
    if (name === "data-outcome") node.style.setProperty("--o", `var(--o-${value})`);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
const byId = (id) => document.getElementById(id);

/** Make the head of a table that has one row of headings. */
const headRow = (...cells) => el("thead", null, el("tr", null, cells));

/** Replace the children of a node. */
function put(node, ...children) {
  node.replaceChildren();
  return fill(node, null, children);
}

/** Make the shape of an outcome. The label is for shapes without a word beside them. */
function glyph(outcome, label) {
  const shape = svg("svg", { class: "glyph", viewBox: "0 0 16 16", "data-outcome": outcome });
  if (label) fill(shape, { role: "img", "aria-label": label }, []);
  else shape.setAttribute("aria-hidden", "true");
  shape.append(svg("use", { href: "#g-" + outcome }));
  return shape;
}

/** Make a link if the target is one; otherwise a text. */
function link(target, text) {
  if (!/^https?:\/\/[^\s]+$/.test(target)) return el("span", { class: "unlinked", text: text || target });
  return el("a", { href: target, rel: "noopener noreferrer", target: "_blank", text: text || target });
}

/** Split a name where a line may break: at the ends of its words, and within words of more than 40 letters. */
const breakable = (name) =>
  name
    .split(/(?<=[.\-_/])/)
    .flatMap((part) => part.match(/.{1,40}/gsu) || [])
    .flatMap((part) => [part, el("wbr")]);

// --- numbers as people read them ---------------------------------------------------------------------

const counted = new Intl.NumberFormat("en-US");
const count = (whole) => counted.format(whole);
const plural = (whole, singular, several) =>
  `${count(whole)} ${whole === 1 ? singular : several || singular + "s"}`;

/** Format seconds, rounded before the unit is chosen, as `duration` in text.py: "25 ms", "9 min", "3 min 5 s". */
function duration(seconds) {
  if (!(seconds > 0)) return "0 s";
  const [milliseconds, short] = [seconds * 1000, seconds].map((value) => Number(value.toPrecision(2)));
  if (milliseconds < 0.1) return "under 0.1 ms";
  if (milliseconds < 100) return `${milliseconds} ms`;
  if (short < 60) return `${short} s`;
  const whole = Math.round(seconds);
  return whole < 3600 ? twoUnits(whole, "min", "s") : twoUnits(Math.round(seconds / 60), "h", "min");
}

function twoUnits(whole, name, ofSmall) {
  const [large, small] = [Math.floor(whole / 60), whole % 60];
  return `${large} ${name}${small ? ` ${small} ${ofSmall}` : ""}`;
}

/** Read a number of the data: inf and nan are texts there. */
const number = (value) => (typeof value === "string" ? Number(value.replace("inf", "Infinity")) : value);

/** Format an error: 0 stays "0", large and small errors get a power of ten. */
function figure(value) {
  if (value === null || value === undefined) return "";
  const real = number(value);
  if (real === 0) return "0";
  if (!Number.isFinite(real)) return Number.isNaN(real) ? "nan" : real > 0 ? "∞" : "-∞";
  const size = Math.abs(real);
  if (size >= 1e5 || size < 1e-2) return real.toExponential(1).replace("e+", "e");
  return size >= 100 ? count(Math.round(real)) : String(Number(real.toPrecision(3)));
}

const percent = (part, whole) =>
  whole > 0 ? `${((100 * part) / whole).toFixed(part / whole < 0.0995 ? 1 : 0)} %` : "";

/** Format ranks as ranges: 0-3,7. */
function ranges(ranks) {
  const sorted = [...ranks].sort((left, right) => left - right);
  const parts = [];
  for (let position = 0; position < sorted.length; position++) {
    const first = sorted[position];
    while (sorted[position + 1] === sorted[position] + 1) position++;
    parts.push(first === sorted[position] ? `${first}` : `${first}-${sorted[position]}`);
  }
  return (ranks.length === 1 ? "rank " : "ranks ") + parts.join(",");
}

/** Cut the end off a text. */
const brief = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);
