// The columns: each is a row of reports/page/columns.py, with the functions of its kind.

/** From this number of ULPs on, it says no more than that the values differ. */
const MOST_ULPS = 1e6;

const errorText = (ulps) => {
  if (ulps === null) return "";
  if (ulps === 0) return "exact";
  return ulps >= MOST_ULPS ? "over 1e6 ulp" : `${figure(ulps)} ulp`;
};

/** Return a key for sorting: errors that are not finite are the largest, a missing error is the smallest. */
const errorKey = (ulps) => (ulps === null ? -1 : typeof ulps === "number" ? ulps : Infinity); // inf and nan are texts

const ranksText = (size) => (size ? plural(size, "rank") : "no world");

/**
 * The kinds of columns: functions of a case and of its value. `columnOf` has the defaults.
 * `text`: the value in the list. `cell`: the same as a node. `key`: the key for sorting. `fact`: the value in the
 * drawer. `label`: the value as a name in the matrix and of a sum. `option` and `group`: the value as a choice of a
 * filter. `address`: the value in the address.
 */
const KINDS = {
  outcome: {
    text: outcomeOf,
    cell: (index) => glyph(outcomeOf(index), outcomeOf(index)),
    order: "what needs a person first",
  },
  case: {
    heading: CASE,
    text: nameOf,
    key: nameOf,
    cell: (index) => [!byFile(state.sort) && el("span", { class: "group", text: groupOf(index) }), titleOf(index)],
  },
  subject: {
    text: (index) => subjectName(subjectOf(index)),
    fact: ownerOf,
    key: (index, value) => value,
    label: (index) => subjectName(subjectOf(index)),
  },
  law: {
    ...(PLAIN && { heading: "file", filter: "all files" }),
    text: (index) => lawOf(index).key,
    key: (index, value) => value,
    option: (index) => lawOf(index).name,
    group: (index) => lawOf(index).contract || "files of tests",
    address: (index) => lawOf(index).key,
  },
  ranks: { text: (index, size) => String(size || "–"), fact: (index, size) => ranksText(size) },
  error: { text: (index, ulps) => errorText(ulps), key: (index, ulps) => errorKey(ulps) },
  duration: {
    text: (index, time) => (time ? duration(time / 1000) : "–"),
    fact: (index, time) => duration(time / 1000),
  },
};

/** Make a column: its row, and functions of a case's index. */
function columnOf(row) {
  const values = column[row.name];
  const own = KINDS[row.kind] || {};
  const bound = (name, fallback) => (own[name] ? (index) => own[name](index, values[index]) : fallback);
  const raw = (index) => (row.name in data.tables ? textIn(row.name, index) : values[index]);
  const text = bound("text", (index) => String(raw(index) ?? ""));
  const fact = bound("fact", text);
  const label = bound("label", (index) => fact(index) || `no ${row.heading}`);
  const heading = own.heading || row.heading;
  return {
    ...row,
    heading,
    order: own.order || `sort by ${heading}`,
    filter: own.filter || row.filter,
    values,
    text,
    cell: bound("cell", (index) => brief(text(index), 240)),
    key: bound("key", raw),
    factText: (index) => row.fact && text(index) && row.fact.replace("{}", () => fact(index)),
    label,
    option: bound("option", label),
    group: bound("group", () => ""),
    address: bound("address", (index) => String(raw(index) ?? "") || NONE),
  };
}

const COLUMNS = data.columns.map(columnOf);
const BY = Object.fromEntries(COLUMNS.map((by) => [by.name, by]));
const LISTED = COLUMNS.filter((by) => by.wide);
const CHOICES = COLUMNS.filter((by) => by.filter);

/** Compare two cases by a column. */
function compareBy(by, left, right) {
  const [a, b] = [by.key(left), by.key(right)];
  const order = typeof a === "string" ? a.localeCompare(b, "en") : a - b;
  return by.descending ? -order : order;
}

/** Return the first case with each value of a column, in the order of the values. */
function firstCases(by, indices) {
  const first = new Map();
  for (const index of indices) if (!first.has(by.values[index])) first.set(by.values[index], index);
  return [...first.values()].sort((left, right) => compareBy(by, left, right));
}
