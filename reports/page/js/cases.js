// The list of cases. However many there are, only those in sight are in the document.

const COLUMNS = [
  { key: "outcome", name: "", less: worstFirst },
  { key: "case", name: "case", less: (one, other) => nameOf(one).localeCompare(nameOf(other), "en") },
  { key: "subject", name: "subject", less: (one, other) => column.subject[one] - column.subject[other] },
  { key: "size", name: "ranks", less: (one, other) => column.size[one] - column.size[other] },
  { key: "error", name: "error", less: (one, other) => errorRank(other) - errorRank(one) },
  { key: "time", name: "time", less: (one, other) => column.seconds[other] - column.seconds[one] },
  { key: "message", name: "message", less: (one, other) => messageOf(other).localeCompare(messageOf(one), "en") },
];

/** For sorting: what cannot be told in figures is the largest, and no error at all the least. */
function errorRank(index) {
  const ulps = column.ulps[index];
  return ulps === null ? -1 : typeof ulps === "number" ? ulps : Infinity; // inf and nan come as text
}

const narrow = matchMedia("screen and (max-width: 760px)");
const rowHeight = () => (narrow.matches ? 58 : 28);

const list = { indices: [], at: 0, body: null, space: null, drawn: "" };

/** Sorted by a column; a dash before its name turns it round. */
function sorted(indices, by) {
  const found = COLUMNS.find((one) => one.key === by.replace(/^-/, "")) || COLUMNS[0];
  const less = by.startsWith("-") ? (one, other) => found.less(other, one) : found.less;
  return [...indices].sort((one, other) => less(one, other) || one - other);
}

function heading(of, by) {
  const now = of.sort.replace(/^-/, "") === by.key || (by.key === "outcome" && !of.sort);
  const turned = of.sort.startsWith("-");
  const next = now && !turned ? `-${by.key}` : by.key;
  return el(
    "button",
    {
      type: "button",
      role: "columnheader",
      class: `c-${by.key}`,
      "aria-sort": now ? (turned ? "descending" : "ascending") : "none",
      title: by.key === "outcome" ? "what needs a person first" : `sort by ${by.name}`,
      "aria-label": by.name || "outcome",
      on: { click: () => go({ sort: next }) },
    },
    by.name || "●",
    now && el("span", { class: "turn", "aria-hidden": "true", text: turned ? " ↑" : " ↓" }),
  );
}

function row(at) {
  const index = list.indices[at];
  const error = column.ulps[index];
  const part = (key, ...inner) => el("span", { role: "gridcell", class: `c-${key}` }, inner);
  const made = el(
    "div",
    {
      role: "row",
      class: "row",
      id: `row-${at}`,
      "aria-rowindex": at + 2,
      "aria-selected": String(at === list.at),
      "data-red": isRed(index),
      on: { click: () => openFromList(at) },
    },
    part("outcome", glyph(outcomeOf(index), outcomeOf(index))),
    part(
      "case",
      el("span", { class: "group", text: lawOf(index).contract ? lawOf(index).contract + "/" : "" }),
      nameOf(index),
    ),
    part("subject", words(subjectOf(index))),
    part("size", column.size[index] ? String(column.size[index]) : "–"),
    part("error", error === null ? "" : error === 0 ? "exact" : `${figure(error)} ulp`),
    part("time", column.seconds[index] ? duration(secondsOf(index)) : "–"),
    part("message", brief(messageOf(index), 160)),
  );
  made.style.transform = `translateY(${at * rowHeight()}px)`;
  return made;
}

/** Put the rows in sight into the document, and a few on either side. */
function drawRows(anew) {
  if (!list.body) return;
  const height = rowHeight();
  const first = Math.max(0, Math.floor(list.body.scrollTop / height) - 8);
  const last = Math.min(
    list.indices.length,
    Math.ceil((list.body.scrollTop + list.body.clientHeight) / height) + 8,
  );
  const drawn = `${first}-${last}-${list.at}`;
  if (!anew && drawn === list.drawn) return;
  list.drawn = drawn;
  const rows = [];
  for (let at = first; at < last; at++) rows.push(row(at));
  put(list.space, rows);
  list.body.setAttribute("aria-activedescendant", list.indices.length ? `row-${list.at}` : "");
}

function openFromList(at) {
  list.at = at;
  drawRows();
  openCase(list.indices[at], "");
}

/** Bring a row into sight; the heads stay at the top, over what is scrolled. */
function reveal(at) {
  const height = rowHeight();
  const { body, space } = list;
  const foot = (at + 1) * height + space.offsetTop;
  if (at * height < body.scrollTop) body.scrollTop = at * height;
  else if (foot > body.scrollTop + body.clientHeight) body.scrollTop = foot - body.clientHeight;
}

function moveInList(event) {
  if (!list.body || document.activeElement !== list.body || !list.indices.length) return false;
  const page = Math.max(1, Math.floor(list.body.clientHeight / rowHeight()) - 1);
  const last = list.indices.length - 1;
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -last, End: last };
  if (event.key === "Enter") openFromList(list.at);
  else if (event.key in steps) {
    list.at = Math.min(last, Math.max(0, list.at + steps[event.key]));
    reveal(list.at);
    drawRows();
  } else return false;
  return true;
}

function drawCases(into, of, indices) {
  const order = sorted(indices, of.sort);
  const same = list.indices.length === order.length && list.indices.every((index, at) => index === order[at]);
  const kept = same && list.body ? { at: list.at, top: list.body.scrollTop } : { at: 0, top: 0 };
  list.indices = order;
  list.at = kept.at;
  const opened = of.case ? order.indexOf(indexOf(of.case)) : -1;
  if (opened >= 0) list.at = opened;
  list.space = el("div", { class: "space", role: "rowgroup" });
  list.space.style.height = `${order.length * rowHeight()}px`;
  const heads = COLUMNS.map((by) => heading(of, by));
  list.body = el(
    "div",
    {
      class: "rows",
      id: "rows",
      tabindex: "0",
      role: "grid",
      "aria-label": "Cases",
      "aria-rowcount": order.length + 1,
      on: { scroll: () => drawRows() },
    },
    el("div", { class: "heads", role: "row", "aria-rowindex": 1 }, heads),
    list.space,
  );
  put(into, el("div", { class: "list" }, list.body), order.length ? null : nothing());
  list.body.scrollTop = kept.top;
  if (opened >= 0) reveal(opened);
  drawRows(true);
}

narrow.addEventListener("change", () => state.view === "cases" && draw());
addEventListener("resize", () => drawRows());

/** On paper there is no scrolling: as many rows as anybody would read are put into the document. */
function drawForPaper() {
  if (state.view !== "cases" || !list.body) return;
  put(
    list.space,
    list.indices.slice(0, 1000).map((_, at) => row(at)),
  );
}
addEventListener("beforeprint", drawForPaper);
addEventListener("afterprint", () => drawRows(true));
