// Findings: red cases by their cause, the ledgers' entries, declared lacks, and oddities of green cases.

/** List the names that these cases have, the most frequent first, up to a limit. */
function someOf(indices, name, most) {
  const names = [...grouped(indices, name)].sort((left, right) => right[1].length - left[1].length);
  const listed = names.slice(0, most).map(([text]) => text);
  return listed.join(", ") + (names.length > most ? ` and ${count(names.length - most)} more` : "");
}

/** Make a list of cases. It is filled when it is opened, up to a limit; a single case is shown at once. */
function caseList(indices) {
  if (indices.length === 1) {
    const single = el("ul", { class: "cases" });
    fillCases(single, indices);
    return single;
  }
  const items = el("ul");
  const list = el("details", { class: "cases" }, el("summary", { text: plural(indices.length, CASE) }), items);
  list.addEventListener(
    "toggle",
    () => list.open && !items.firstChild && fillCases(items, [...indices].sort(worstFirst)),
  );
  return list;
}

function fillCases(items, order) {
  const most = 60;
  for (const index of order.slice(0, most)) {
    const act = () => openCase(index, "");
    const subject = el("span", { class: "faint", text: ` ${subjectOf(index)}` });
    const shape = glyph(outcomeOf(index), outcomeOf(index));
    items.append(
      el("li", null, el("button", { type: "button", on: { click: act } }, shape, " ", nameOf(index), subject)),
    );
  }
  const rest = order.length - most;
  if (rest > 0)
    items.append(el("li", { class: "faint small", text: `and ${count(rest)} more: filter to see them all` }));
}

function finding(outcome, indices, title, aside) {
  return el(
    "li",
    { class: "finding", "data-outcome": outcome },
    glyph(outcome, outcome),
    el("b", { class: "number", text: count(indices.length) }),
    el("div", null, title, aside && el("p", { class: "faint small" }, aside), caseList(indices)),
  );
}

/** Name the subjects of these cases, and count them if there are several. */
function subjectsOf(indices) {
  const several = new Set(indices.map((index) => column.subject[index])).size;
  const names = someOf(indices, (index) => subjectName(subjectOf(index)), 3);
  return several > 1 ? `${plural(several, "subject")}: ${names}` : names;
}

/** Group red cases by their cause: the worst outcomes first, then the largest groups. */
function causes(indices) {
  const red = indices.filter(isRed);
  const groups = [...grouped(red, (index) => column.cause[index]).values()];
  groups.sort((left, right) => column.outcome[left[0]] - column.outcome[right[0]] || right.length - left.length);
  return groups.map((cases) => () => {
    const first = cases[0];
    const title = el(
      "button",
      { type: "button", class: "title", on: { click: () => openCase(first, "") } },
      messageOf(first) || lawOf(first).key,
    );
    const context = [
      !PLAIN && subjectsOf(cases),
      someOf(cases, (index) => lawOf(index).key, 3),
      optimizerOf(first) && someOf(cases, optimizerOf, 4),
    ];
    return finding(outcomeOf(first), cases, title, breakable(context.filter(Boolean).join(" · ")));
  });
}

/** List the entries of ledgers that cases met, with the outcomes. */
function entries(indices) {
  const declared = indices.filter((index) => column.ledger[index] >= 0);
  const groups = [...grouped(declared, (index) => `${column.ledger[index]}\n${column.subject[index]}`).values()];
  return groups.map((cases) => () => {
    const entry = data.tables.ledger[column.ledger[cases[0]]];
    const worst = worstOf(cases);
    const stale = cases.filter((index) => outcomeOf(index) === "stale").length;
    return finding(outcomeOf(worst), cases, el("p", { class: "title", text: entry.note || "no note" }), [
      subjectName(subjectOf(cases[0])),
      entry.kind === "documented" ? " · documented by the library · " : ` · expects ${entry.kind} · `,
      link(entry.link || entry.issue),
      entry.file && [" · ", el("code", { text: entry.file })],
      stale > 0 && el("b", { text: ` · ${count(stale)} stale: remove or narrow the entry` }),
    ]);
  });
}

function lacks(indices) {
  const declared = indices.filter((index) => column.lack[index] >= 0);
  const groups = [...grouped(declared, (index) => `${column.lack[index]}\n${column.subject[index]}`).values()];
  return groups.map(
    (cases) => () =>
      finding(outcomeOf(worstOf(cases)), cases, el("p", { class: "title", text: textIn("lack", cases[0]) }), [
        subjectName(subjectOf(cases[0])),
        " · ",
        someOf(cases, (index) => lawOf(index).key, 4),
      ]),
  );
}

/** Findings that no outcome shows: something was left behind, or neighbours contributed to a failure. */
function oddities(indices) {
  const left = grouped(
    indices.filter((index) => column.leak[index] >= 0),
    (index) => column.leak[index],
  );
  const rows = [...left].map(
    ([leak, cases]) =>
      () =>
        finding(
          outcomeOf(worstOf(cases)),
          cases,
          el("p", { class: "title", text: `left behind: ${data.tables.leak[leak]}` }),
          someOf(cases, ownerOf, 3),
        ),
  );
  const alone = indices.filter((index) => column.alone[index]);
  if (alone.length) {
    const title = el("p", { class: "title", text: "failed in a world that had served before, and pass alone" });
    rows.push(() => finding("fail", alone, title, someOf(alone, ownerOf, 3)));
  }
  return rows;
}

/** Say of each subject how much of what the scripts of its contract can ask was asked, and was green. */
function crossed(indices) {
  const shown = new Set(indices.map((index) => `${lawOf(index).contract}\n${subjectOf(index)}`));
  const parts = data.runs.flatMap((run) => run.crossings);
  const texts = { pairs: "pairs of moves in a row", triples: "triples in their order", flows: "flows of state" };
  const share = (part, name) => `${Math.floor((100 * part[name][0]) / part[name][1])} % of ${texts[name]}`;
  return parts
    .filter((part) => shown.has(`${part.contract}\n${part.subject}`))
    .map(
      (part) => () =>
        el(
          "li",
          { class: "crossed" },
          el("b", null, breakable(part.subject)),
          el("span", { class: "faint", text: ` ${part.contract}, ${plural(part.scripts, "script")}: ` }),
          Object.keys(texts)
            .filter((name) => part[name][1])
            .map((name) => share(part, name))
            .join(", "),
        ),
    );
}

const FIRST = 100; // findings that are drawn at once; nobody reads more before filtering

/** Make the findings under a heading. Each row is a function; later rows are drawn when a person asks for them. */
function findingSection(title, summary, rows, empty) {
  const list = el(
    "ol",
    null,
    rows.slice(0, FIRST).map((row) => row()),
  );
  const rest = rows.length - FIRST;
  const more = el("button", { type: "button", class: "more", text: `the other ${count(rest)}` });
  more.addEventListener("click", () => {
    list.append(...rows.slice(FIRST).map((row) => row()));
    more.remove();
  });
  const card = wideCard(
    title,
    el("span", { class: "sum", text: rows.length ? summary : "" }),
    rows.length ? list : el("p", { class: "faint", text: empty }),
    rest > 0 && more,
  );
  card.classList.add("findings");
  return card;
}

function drawFindings(parent, wanted, indices) {
  const whys = causes(indices);
  const red = indices.filter(isRed).length;
  const known = entries(indices);
  const declared = lacks(indices);
  const odd = oddities(indices);
  const asked = crossed(indices);
  put(
    parent,
    findingSection(
      "Needs a person",
      `${plural(red, CASE)}, ${plural(whys.length, "cause")}`,
      whys,
      data.conclusion.state === "as-declared" ? "Nothing: all is as declared." : "No case here needs a person.",
    ),
    findingSection(
      "Known to the ledgers",
      plural(known.length, "entry", "entries"),
      known,
      "No case met an entry of a ledger.",
    ),
    findingSection("Declared lacks", plural(declared.length, "lack"), declared, "No case probed a declared lack."),
    odd.length
      ? findingSection("Odd, whatever the outcome", plural(odd.length, "oddity", "oddities"), odd, "")
      : null,
    asked.length
      ? findingSection("What a green of crossings means", "beside what --profile=full asks", asked, "")
      : null,
  );
}
