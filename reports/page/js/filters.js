// Filter the cases by words, by outcome, and by the columns that have a filter.

const kept = new Map(); // the last few answers: leafing through cases asks for the same one again

/** Return the cases that pass all filters, in the order of collection. */
function matched(wanted) {
  const key = JSON.stringify(FILTERS.map((field) => wanted[field]));
  if (kept.has(key)) return kept.get(key);
  const outcomes = wanted.outcome.length ? OUTCOMES.map((outcome) => wanted.outcome.includes(outcome)) : null;
  const conditions = CHOICES.filter((by) => wanted[by.name] !== "").map((by) => [
    by.values,
    valueAt(by, wanted[by.name]),
  ]);
  const asked = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = asked.length ? haystack() : null;
  const indices = [];
  for (let index = 0; index < COUNT; index++) {
    if (outcomes !== null && !outcomes[column.outcome[index]]) continue;
    if (!conditions.every(([values, value]) => values[index] === value)) continue;
    if (texts !== null && !asked.every((word) => texts[index].includes(word))) continue;
    indices.push(index);
  }
  if (kept.size > 8) kept.clear();
  kept.set(key, indices);
  return indices;
}

// --- the bar -----------------------------------------------------------------------------------------

const option = (value, text) => el("option", { value, text });

/** For each column with a filter, the first case with each value. */
const choices = new Map(CHOICES.map((by) => [by, firstCases(by, ALL)]));

/** Return the value that the address names; undefined if no case has it. */
const valueAt = (by, address) => by.values[choices.get(by).find((index) => by.address(index) === address)];

/** Make the choice among the values of a column. The first option stands for all cases. */
function choice(by) {
  const select = el("select", {
    id: `filter-${by.name}`,
    "aria-label": by.filter,
    on: { change: () => go({ [by.name]: select.value, case: "", scope: "" }) },
  });
  select.append(option("", by.filter));
  for (const [group, indices] of grouped(choices.get(by), by.group)) {
    const parent = group ? select.appendChild(el("optgroup", { label: group })) : select;
    parent.append(...indices.map((index) => option(by.address(index), by.option(index))));
  }
  return select;
}

function makeFilters() {
  const text = el("input", {
    id: "filter-q",
    type: "search",
    placeholder: "filter by words   /",
    "aria-label": "Filter by words in ids, messages and subjects",
    autocomplete: "off",
    spellcheck: "false",
    on: { input: () => go({ q: text.value }, false) },
  });
  const clear = el("button", {
    id: "clear",
    type: "button",
    text: "clear",
    on: { click: () => go({ ...unfiltered(), case: "", scope: "" }) },
  });
  const matches = el("output", { id: "matches", "aria-live": "polite" });
  put(byId("filters"), text, CHOICES.map(choice), clear, matches);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
}

function drawFilters(wanted, indices) {
  const text = byId("filter-q");
  if (text.value !== wanted.q) text.value = wanted.q;
  for (const { name: field } of CHOICES) {
    const select = byId(`filter-${field}`);
    select.value = wanted[field];
    // A name that no case of this run has filters too. It is shown, so that a person sees why the page is empty.
    if (select.value !== wanted[field]) select.append(option(wanted[field], wanted[field]));
    select.value = wanted[field];
    select.classList.toggle("set", wanted[field] !== "");
    select.hidden = wanted[field] === "" && select.querySelectorAll("option").length <= 2; // all, and a single value
  }
  byId("clear").hidden = !isFiltered(wanted);
  byId("matches").textContent = isFiltered(wanted) ? `${count(indices.length)} of ${count(COUNT)}` : "";
}

// --- the outcomes: legend, counts and filter in one ------------------------------------------------------

const MEANINGS = {
  crash: "a rank died",
  timeout: "the world missed its deadline",
  deadlock: "the world could never have continued",
  error: "the test itself went wrong",
  fail: "the law is broken",
  stale: "the ledger expects a deviation, and it passes",
  interrupted: "ended by Ctrl-C, or by a signal to pytest",
  "not-run": "listed, but not run",
  known: "a deviation that the ledger knows",
  approximate: "within the bound that the subject declares",
  unsupported: "a declared lack, refused as declared",
  skipped: "skipped, with a reason",
  "not-applicable": "says nothing here, worked out by the kit",
  pass: "proven on every rank",
};

/** The meanings for a test that checks no law. */
const MEANINGS_OF_TESTS = {
  fail: "the test failed",
  known: "failed as the mark xfail expects",
  stale: "expected to fail, and passes",
};

const meaningOf = (index) =>
  (lawOf(index).contract ? null : MEANINGS_OF_TESTS[outcomeOf(index)]) || MEANINGS[outcomeOf(index)];

function toggleOutcome(outcome) {
  const set = state.outcome.includes(outcome);
  const outcomes = set ? state.outcome.filter((other) => other !== outcome) : [...state.outcome, outcome];
  go({ outcome: OUTCOMES.filter((name) => outcomes.includes(name)), case: "", scope: "" });
}

/** Draw a button for each outcome, with the number of cases that pass the other filters. */
function drawOutcomes(wanted) {
  const counts = tally(matched({ ...wanted, outcome: [] }));
  const everywhere = tally(ALL);
  const chips = OUTCOMES.map((outcome, position) => {
    if (everywhere[position] === 0 && !wanted.outcome.includes(outcome)) return null;
    return el(
      "button",
      {
        type: "button",
        class: "chip",
        "data-outcome": outcome,
        "aria-pressed": String(wanted.outcome.includes(outcome)),
        title: MEANINGS[outcome],
        on: { click: () => toggleOutcome(outcome) },
      },
      glyph(outcome),
      el("b", { text: count(counts[position]) }),
      el("span", { text: outcome }),
    );
  });
  put(byId("outcomes"), ...chips);
  const seen = counts.map((number, position) =>
    wanted.outcome.length && !wanted.outcome.includes(OUTCOMES[position]) ? 0 : number,
  );
  put(byId("spread"), ...bars(seen));
}

/** Draw the outcomes in proportion, each wide enough to be seen. */
function bars(counts) {
  return counts.map((number, position) => {
    if (number === 0) return null;
    const bar = el("i", { "data-outcome": OUTCOMES[position] });
    bar.style.flexGrow = String(number);
    return bar;
  });
}
