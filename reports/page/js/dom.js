// Making nodes. Text becomes text nodes, never markup: what came from tests cannot become part of the page.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "text") node.textContent = value;
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const el = (tag, props, ...children) => fill(document.createElement(tag), props, children);
const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
const byId = (id) => document.getElementById(id);

/** Replace what a node holds. */
function put(node, ...children) {
  node.replaceChildren();
  return fill(node, null, children);
}

/** The shape of an outcome; a word stands beside it, or the label says it. */
function glyph(outcome, label) {
  const shape = svg("svg", { class: "glyph", viewBox: "0 0 16 16", "data-outcome": outcome });
  if (label) fill(shape, { role: "img", "aria-label": label }, []);
  else shape.setAttribute("aria-hidden", "true");
  shape.append(svg("use", { href: "#g-" + outcome }));
  return shape;
}

/** A link only where it is one; anything else stays text. */
function link(target, text) {
  if (!/^https?:\/\/[^\s]+$/.test(target)) return el("span", { class: "unlinked", text: text || target });
  return el("a", { href: target, rel: "noopener noreferrer", target: "_blank", text: text || target });
}

/** A name that may be broken where its words end, and within a word only if that is endless. */
const breakable = (name) =>
  name
    .split(/(?<=[.\-_/])/)
    .flatMap((part) => part.match(/.{1,40}/gsu) || [])
    .flatMap((part) => [part, el("wbr")]);

// --- numbers as people read them ---------------------------------------------------------------------

const counted = new Intl.NumberFormat("en-US");
const count = (whole) => counted.format(whole);
const plural = (whole, one, many) => `${count(whole)} ${whole === 1 ? one : many || one + "s"}`;

/** Seconds, rounded first and then named: "25 ms", "9 min", "3 min 5 s"; as `duration` in text.py does it. */
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

/** A number of the data: those that JSON does not have come as text. */
const number = (value) => (typeof value === "string" ? Number(value.replace("inf", "Infinity")) : value);

/** Formats an error: 0 stays "0", large and small errors get a power of ten. */
function figure(value) {
  if (value === null || value === undefined) return "";
  const told = number(value);
  if (told === 0) return "0";
  if (!Number.isFinite(told)) return Number.isNaN(told) ? "nan" : told > 0 ? "∞" : "-∞";
  const size = Math.abs(told);
  if (size >= 1e5 || size < 1e-2) return told.toExponential(1).replace("e+", "e");
  return size >= 100 ? count(Math.round(told)) : String(Number(told.toPrecision(3)));
}

const percent = (part, whole) =>
  whole > 0 ? `${((100 * part) / whole).toFixed(part / whole < 0.0995 ? 1 : 0)} %` : "";

/** Ranks as ranges: 0-3,7. */
function ranges(ranks) {
  const sorted = [...ranks].sort((one, other) => one - other);
  const parts = [];
  for (let at = 0; at < sorted.length; at++) {
    const first = sorted[at];
    while (sorted[at + 1] === sorted[at] + 1) at++;
    parts.push(first === sorted[at] ? `${first}` : `${first}-${sorted[at]}`);
  }
  return (ranks.length === 1 ? "rank " : "ranks ") + parts.join(",");
}

/** Cut a text in the middle, for titles. */
const brief = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);
