// The nights: how each law came out, night by night, and what changed: first bad night, flips, flakes, time, error.

const past = data.history;
const hasHistory = () => past !== null;

/** A law with something to report: red, flipped, slower or less exact. */
function stirred(law) {
  return law.red || law.first_bad !== null || law.flips > 0 || law.flaked > 0 || law.slower || law.less_exact;
}

/** Compare two laws: red laws first, the newest first; then those that flip, then those that drift. */
function nightOrder(left, right) {
  return (
    Number(right.red) - Number(left.red) ||
    (right.since ?? -2) - (left.since ?? -2) ||
    right.flaked - left.flaked ||
    right.flips - left.flips ||
    Number(right.less_exact) - Number(left.less_exact) ||
    Number(right.slower) - Number(left.slower) ||
    (number(right.drift) || 0) - (number(left.drift) || 0)
  );
}

const nightLaw = (law) => (law.contract ? `${law.contract}/${law.law}` : law.law);

/** Return the laws that pass the filters by subject, law and words. */
function seenAtNight(wanted) {
  const asked = wanted.q.toLowerCase().split(/\s+/).filter(Boolean);
  return past.laws.filter(
    (law) =>
      (wanted.subject === "" || law.subject === (wanted.subject === NONE ? "" : wanted.subject)) &&
      (wanted.law === "" || nightLaw(law) === wanted.law || nightLaw(law).startsWith(`${wanted.law}::`)) &&
      asked.every((word) => `${law.subject} ${nightLaw(law)}`.toLowerCase().includes(word)),
  );
}

/** Describe the versions that changed since the night before. */
function newVersions(before, night) {
  const changed = ["torch", "kit"].filter((field) => before[field] !== night[field]);
  const changes = changed.map((field) => `${field} ${before[field]} → ${night[field]}`).join(", ");
  return changes && `; new: ${changes}`;
}

/** A date stands under each of few nights, and under each seventh of many, counted from the last. */
function isDated(position) {
  const last = past.nights.length - 1;
  return last < 8 || ((last - position) % 7 === 0 && position > 3);
}

/** Draw a bar for each night: its outcomes in proportion, red ones at the foot. */
function nightBars() {
  const { nights } = past;
  const most = Math.max(1, ...nights.map((night) => night.counts.reduce((sum, cases) => sum + cases, 0)));
  return el(
    "ol",
    { class: "nights" },
    nights.map((night, position) => {
      const whole = night.counts.reduce((sum, cases) => sum + cases, 0);
      const red = night.counts.reduce((sum, cases, position) => sum + (REDNESS[position] ? cases : 0), 0);
      const bar = el("span", { class: "night" }, bars(night.counts));
      bar.style.height = `${Math.max(4, (100 * whole) / most)}%`;
      const outcome = `${red ? `${count(red)} red of ` : ""}${plural(whole, "case")}`;
      const cut = night.whole ? "" : "; did not finish";
      const news = position > 0 ? newVersions(nights[position - 1], night) : "";
      const source = night.source && `, ${night.source}`;
      const beside = night.reasons.map((reason) => `; ${reason}`).join("");
      const description = `${night.date} UTC, ${night.file}${source}: ${outcome}${beside}, torch ${night.torch}${cut}${news}`;
      const wrong = !night.whole || night.reasons.length > 0;
      return el(
        "li",
        { title: description, "aria-label": description, "data-cut": wrong, "data-new": news !== "" },
        bar,
        isDated(position) && el("span", { class: "date", text: night.date.slice(5, 10) }),
      );
    }),
  );
}

/** Draw the worst outcome of a law in one night. */
function nightCell(point, night) {
  const when = past.nights[night].date;
  if (point === null) return el("td", { class: "untried", title: `${when}: not tried` });
  const [worst, red, whole] = point;
  const description = `${when}: ${OUTCOMES[worst]}, ${red ? `${count(red)} red of ` : ""}${plural(whole, "case")}`;
  return el("td", { title: description, "data-red": REDNESS[worst] }, glyph(OUTCOMES[worst], description));
}

/** Show one case night by night, and the night of its last change. */
function nightsPart(detail) {
  if (!hasHistory() || !detail.nights) return null;
  const ends = [...detail.nights].map((letter) => OUTCOMES[past.letters.indexOf(letter)]);
  const tried = [...ends.keys()].filter((night) => ends[night]);
  const list = el(
    "ol",
    { class: "case-nights" },
    ends.map((outcome, position) => {
      const night = past.nights[position];
      const description = [`${night.date} UTC`, night.source, outcome || "not tried"].filter(Boolean).join(", ");
      return el("li", { title: description, "data-red": RED.has(outcome) }, outcome && glyph(outcome, description));
    }),
  );
  return section(
    "Over the nights",
    el("span", {
      class: "faint",
      text: `${past.nights[0].date.slice(0, 10)} to ${past.nights.at(-1).date.slice(0, 10)}`,
    }),
    list,
    el("p", { class: "small" }, caseSentence(ends, tried)),
  );
}

/** Describe the last change of a case, with the commits before and after it. */
function caseSentence(ends, tried) {
  const red = (night) => RED.has(ends[night]);
  const number = tried.filter(red).length;
  if (!tried.length) return "Not tried in any of these nights.";
  const last = tried.at(-1);
  const before = tried.filter((night) => red(night) !== red(last)).at(-1);
  if (before === undefined)
    return red(last)
      ? `Red in each of ${plural(number, "night")}.`
      : `Never red in ${plural(tried.length, "night")}.`;
  const turned = past.nights[tried.find((night) => night > before)];
  const named = (night) => [night.date.slice(0, 10), night.source].filter(Boolean).join(", ");
  return [
    `${red(last) ? "Red" : "Green"} since ${named(turned)}; `,
    `${red(last) ? "green" : "red"} last on ${named(past.nights[before])}. `,
    `Red in ${count(number)} of ${plural(tried.length, "night")}. `,
    turned.ci && link(turned.ci, "CI run"),
  ];
}

/** Draw figures over the nights as a line. */
function spark(values, log) {
  const shown = values.map((value) => (value === null ? null : number(value)));
  const real = shown.filter((value) => value !== null && Number.isFinite(value) && (!log || value > 0));
  if (real.length < 2) return null;
  const scale = log ? Math.log10 : (value) => value;
  const low = log ? Math.min(...real.map(scale)) : 0;
  const high = Math.max(...real.map(scale), low + 1e-12);
  const x = (position) => 2 + (76 * position) / Math.max(1, shown.length - 1);
  const y = (value) => (log && value === 0 ? 17 : 16 - (13 * (scale(value) - low)) / (high - low));
  const points = shown.flatMap((value, position) =>
    value === null || !Number.isFinite(value) ? [] : [`${x(position)},${y(value)}`],
  );
  const [lastX, lastY] = points.at(-1).split(",");
  return svg(
    "svg",
    { class: "spark", viewBox: "0 0 80 20", "aria-hidden": "true" },
    svg("path", { d: `M${points.join(" L")}` }),
    svg("circle", { cx: lastX, cy: lastY, r: 2 }),
  );
}

/** Format a ratio; a ratio without information is shown without figures. */
function times(value) {
  if (value === null) return "";
  const ratio = number(value);
  return ratio >= 9.95 || !Number.isFinite(ratio) ? `×${figure(value)}` : `×${ratio.toFixed(1)}`;
}
const nightName = (night) => (night === null ? "" : night < 0 ? "earlier" : past.nights[night].date.slice(0, 10));

const figures = (...inner) => el("td", { class: "figures" }, inner);

/** Add up a night of several subjects: the worst outcome, and the red and all cases. */
function together(points) {
  const known = points.filter(Boolean);
  const add = (field) => known.reduce((sum, point) => sum + point[field], 0);
  return known.length ? [Math.min(...known.map((point) => point[0])), add(1), add(2), null, null] : null;
}

/** Return the rows of the table: laws that were red alike on several subjects are one. */
function nightRows(laws) {
  return [...grouped(laws, (law) => law.alike).values()].map((alike) => {
    if (alike.length === 1) return alike[0];
    const [law] = alike;
    return {
      ...law,
      subject: "",
      subjects: alike.map((other) => other.subject),
      points: law.points.map((_, night) => together(alike.map((other) => other.points[night]))),
      flake_rate: Math.max(...alike.map((other) => other.flake_rate)),
      pace: null,
      drift: null,
    };
  });
}

/** Name the subject of a row, or the first of several. */
function nightOwner(law) {
  if (!law.subjects) return breakable(subjectName(law.subject));
  const rest = law.subjects.length - 3;
  const named = law.subjects.slice(0, 3).join(", ") + (rest > 0 ? ` and ${count(rest)} more` : "");
  return breakable(`${plural(law.subjects.length, "subject")}: ${named}`);
}

function nightRow(law) {
  // A test without a subject has no law but its file, so it is found by its name.
  const tonight = law.contract ? { law: nightLaw(law) } : { q: law.law };
  const subject = law.subjects ? "" : law.subject || NONE;
  const open = () => go({ view: "cases", subject, ...tonight });
  const last = (field) => law.points.map((point) => (point === null ? null : point[field]));
  return el(
    "tr",
    { "data-red": law.red },
    el(
      "th",
      { scope: "row" },
      el(
        "button",
        { type: "button", class: "law", title: "the cases of tonight", on: { click: open } },
        lawName({ contract: law.contract, name: law.law }),
      ),
      !PLAIN && el("span", { class: "faint small owner", title: (law.subjects || []).join("\n") }, nightOwner(law)),
    ),
    law.points.map(nightCell),
    figures(law.red && el("b", { class: "bad", text: nightName(law.since) })),
    figures(nightName(law.first_bad)),
    figures(law.flips > 0 && String(law.flips)),
    figures(law.flake_rate > 0 && percent(law.flake_rate, 1)),
    figures(spark(last(3), false), el("span", { class: law.slower ? "bad" : "", text: times(law.pace) })),
    figures(spark(last(4), true), el("span", { class: law.less_exact ? "bad" : "", text: times(law.drift) })),
  );
}

function nightTable(laws) {
  const heads = [
    ["red since", "the night since which it is red"],
    ["first bad", "the first night that was red"],
    ["flips", "times that the law went from green to red or back"],
    ["flakes", "steps between nights at which a case flipped, and no new torch, kit or commit explains it"],
    ["time", "of the median case; the last night against the median of those before"],
    ["error", "the largest, on a log scale; the last night against the median of those before"],
  ];
  const across = past.nights.map((night, position) =>
    el(
      "th",
      { scope: "col", class: "date", title: night.date },
      position % 7 === 0 ? el("span", { text: night.date.slice(5, 10) }) : "",
    ),
  );
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "over", "aria-label": "Laws over the nights" },
      headRow(
        el("th"),
        across,
        heads.map(([name, title]) => el("th", { scope: "col", class: "figures", title, text: name })),
      ),
      el("tbody", null, nightRows(laws).map(nightRow)),
    ),
  );
}

function drawHistory(parent, wanted) {
  if (!hasHistory()) {
    put(
      parent,
      el("p", {
        class: "nothing",
        text: "This page was made without a history: everyrank page --history FOLDER has one.",
      }),
    );
    return;
  }
  const laws = seenAtNight(wanted);
  const moved = laws.filter(stirred).sort(nightOrder);
  const rows = new Set(moved.map((law) => law.alike)).size;
  const still = laws.filter((law) => !stirred(law));
  const rest = el(
    "details",
    { class: "still" },
    el("summary", { text: `${plural(still.length, "law")} that never changed` }),
  );
  rest.addEventListener("toggle", () => rest.open && rest.children.length === 1 && rest.append(nightTable(still)));
  put(
    parent,
    wideCard(
      plural(past.nights.length, "night"),
      el("span", { class: "sum", text: past.earlier ? `and ${count(past.earlier)} earlier` : "" }),
      nightBars(),
      past.left_out.length > 0 &&
        el(
          "details",
          { class: "small" },
          el("summary", { text: `${plural(past.left_out.length, "file")} left out` }),
          el(
            "ul",
            { class: "plain" },
            past.left_out.map((line) => el("li", { text: line })),
          ),
        ),
    ),
    wideCard(
      "Laws that moved",
      el("span", {
        class: "sum",
        text: plural(moved.length, "law") + (rows < moved.length ? ` in ${plural(rows, "row")}` : ""),
      }),
      moved.length
        ? nightTable(moved)
        : el("p", { class: "faint", text: "None: each law came out each night as it did before." }),
      still.length > 0 && rest,
    ),
  );
}
