// The matrix: laws down, subjects across; of one subject, laws down and optimizers across.

/** What a cell is called by those who cannot see it. */
function cellLabel(law, across, counts) {
  const told = OUTCOMES.map((outcome, place) => (counts[place] ? `${count(counts[place])} ${outcome}` : ""));
  return `${law.name}, ${across}: ${told.filter(Boolean).join(", ")}`;
}

/** A cell shows the worst outcome's shape and how many have it; the strip below is all of them in proportion. */
function cell(law, across, indices, scope) {
  const counts = tally(indices);
  const worst = worstOf(indices);
  const outcome = outcomeOf(worst);
  const of = counts[column.outcome[worst]];
  const mixed = of < indices.length;
  return el(
    "button",
    {
      type: "button",
      class: "cell",
      tabindex: "-1",
      "data-outcome": outcome,
      "data-red": isRed(worst),
      "data-cell": `${law.key}\n${across}`,
      "aria-label": cellLabel(law, across, counts),
      title: cellLabel(law, across, counts),
      on: { click: () => openCase(worst, scope) },
    },
    glyph(outcome),
    el("span", { class: "many", text: count(of) }),
    mixed && el("span", { class: "strip" }, bars(counts)),
  );
}

/** A law's name, with the group that it belongs to held back. */
function lawName(law) {
  const cut = law.contract ? law.name.lastIndexOf(".") + 1 : law.name.lastIndexOf("/") + 1;
  return [el("span", { class: "group", text: law.name.slice(0, cut) }), law.name.slice(cut)];
}

/** Whether a row stands apart from the one above: a group of laws begins there, or has ended. */
function groupStarts(places) {
  const group = (at) => (LAWS[places[at]].contract ? LAWS[places[at]].name.split(".")[0] : "");
  const sizes = new Map();
  places.forEach((_, at) => sizes.set(group(at), (sizes.get(group(at)) || 0) + 1));
  return places.map(
    (_, at) => at > 0 && group(at) !== group(at - 1) && (sizes.get(group(at)) > 1 || sizes.get(group(at - 1)) > 1),
  );
}

function lawHead(law, total) {
  return el(
    "th",
    { scope: "row" },
    el(
      "button",
      {
        type: "button",
        class: "law",
        title: `the ${plural(total, law.contract ? "case" : "test")} of ${law.key}`,
        on: { click: () => go({ view: "cases", law: law.key }) },
      },
      lawName(law),
    ),
  );
}

/** One table: laws by the values of a column. */
function table(label, laws, values, heads, scope) {
  const columns = [...heads.keys()];
  const head = el(
    "tr",
    null,
    el("th", { class: "corner" }),
    columns.map((across) => heads.get(across)),
  );
  const apart = groupStarts([...laws.keys()]);
  const rows = [...laws].map(([place, indices], at) => {
    const law = LAWS[place];
    const cells = grouped(indices, (index) => values[index]);
    return el(
      "tr",
      { class: apart[at] ? "apart" : null },
      lawHead(law, indices.length),
      columns.map((across) =>
        el(
          "td",
          { role: "gridcell" },
          cells.has(across) && cell(law, String(heads.get(across).dataset.name), cells.get(across), scope),
        ),
      ),
    );
  });
  return el("table", { role: "grid", "aria-label": label }, el("thead", null, head), el("tbody", null, rows));
}

function columnHead(name, act, title) {
  return el(
    "th",
    { scope: "col", "data-name": name },
    el("button", { type: "button", class: "across", title, on: { click: act } }, breakable(name)),
  );
}

/** Laws sorted as the run lists them: by contract, then in the order of their first case. */
function lawsOf(indices) {
  const laws = grouped(indices, (index) => column.law[index]);
  return new Map([...laws].sort(([one], [other]) => one - other));
}

function card(title, indices, inner) {
  const counts = tally(indices);
  const red = OUTCOMES.reduce((sum, _, place) => sum + (REDNESS[place] ? counts[place] : 0), 0);
  return el(
    "section",
    { class: "card", "data-red": red > 0 },
    el(
      "header",
      null,
      el("h2", null, breakable(title)),
      el("span", {
        class: "sum",
        text: red ? `${count(red)} red of ${count(indices.length)}` : plural(indices.length, CASE),
      }),
    ),
    el("div", { class: "spread thin", "aria-hidden": "true" }, bars(counts)),
    el("div", { class: "scroll" }, inner),
  );
}

/** A card with laws by the values of a column; a click on a value filters by it, and by `more`. */
function columnCard(title, indices, by, more, headTitle, scope) {
  const heads = firstCases(by, indices).map((first) => {
    const act = () => go({ [by.name]: by.address(first), ...more });
    return [by.values[first], columnHead(by.label(first), act, headTitle(by.label(first)))];
  });
  return card(title, indices, table(title, lawsOf(indices), by.values, new Map(heads), scope));
}

/** Tests without a subject stand by the ranks of their world. */
const byRanks = (cases) =>
  columnCard(subjectName(""), cases, BY.size, { subject: NONE }, (label) => `tests of ${label}`, "row");

/** A card a contract: its laws by the subjects that claim it. */
function bySubject(indices) {
  const contracts = grouped(indices, (index) => lawOf(index).contract);
  const title = (label) => `${label}: law by optimizer`;
  return [...contracts].map(([contract, cases]) =>
    contract === "" ? byRanks(cases) : columnCard(contract, cases, BY.subject, {}, title, "law"),
  );
}

/** One subject: its laws by optimizers; those that no optimizer has a part in stand in the first column. */
function byOptimizer(indices, subject) {
  if (subject === "") return indices.length ? byRanks(indices) : [];
  return columnCard(subject, indices, BY.optimizer, { view: "cases" }, (label) => `the cases of ${label}`, "cell");
}

function drawMatrix(into, of, indices) {
  const subject = of.subject === NONE ? "" : of.subject;
  const crumbs = of.subject
    ? el(
        "p",
        { class: "crumbs" },
        el("button", {
          type: "button",
          id: "all-subjects",
          text: "all subjects",
          on: { click: () => go({ subject: "" }) },
        }),
        " › ",
        el("b", null, breakable(subjectName(subject))),
        el("span", { class: "faint", text: of.subject === NONE ? "" : "  law by optimizer" }),
      )
    : el(
        "p",
        { class: "crumbs faint" },
        PLAIN
          ? "File by ranks. A cell opens its worst test; a file's name lists its tests."
          : "Law by subject. A cell opens its worst case; a subject's name opens law by optimizer.",
      );
  const cards = of.subject ? byOptimizer(indices, subject) : bySubject(indices);
  put(into, crumbs, indices.length ? el("div", { class: "cards" }, cards) : nothing());
  const first = into.querySelector(".cell");
  if (first) first.tabIndex = 0;
}

/** What is said where the filters leave nothing. */
function nothing() {
  const text = COUNT ? `No ${CASE} passes these filters.` : "This run has no multi-rank test.";
  return el("p", { class: "nothing" }, text);
}

// --- arrows over cells -----------------------------------------------------------------------------------

/** The cell to go to from this one: in its row, or the nearest in the rows above or below, over tables too. */
function neighbour(from, key) {
  const rows = [...byId("main").querySelectorAll("tbody tr")];
  const row = from.closest("tr");
  const across = from.closest("td").cellIndex;
  const inRow = (of) => [...of.querySelectorAll(".cell")];
  if (key === "ArrowRight" || key === "ArrowLeft") {
    const cells = inRow(row);
    return cells[cells.indexOf(from) + (key === "ArrowRight" ? 1 : -1)] || null;
  }
  if (key === "Home") return inRow(row)[0];
  if (key === "End") return inRow(row).at(-1);
  const step = key === "ArrowDown" ? 1 : -1;
  for (let at = rows.indexOf(row) + step; rows[at]; at += step) {
    const cells = inRow(rows[at]);
    const near = (one) => Math.abs(one.closest("td").cellIndex - across);
    if (cells.length) return cells.reduce((best, one) => (near(one) < near(best) ? one : best));
  }
  return null;
}

function moveInMatrix(event) {
  const from = event.target.closest && event.target.closest(".cell");
  if (!from || !["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key))
    return false;
  const to = neighbour(from, event.key);
  if (to) {
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }
  return true;
}
