// The nights: how each law came out, night by night, and what changed: first bad night, flips, flakes, time, error.

const past = data.history;
const hasHistory = () => past !== null;

/** A law with something to report: red, flipped, slower or less exact. */
function stirred(law) {
  return law.red || law.first_bad !== null || law.flips > 0 || law.flaked > 0 || law.slower || law.less_exact;
}

/** What needs a person first: red now, the newest first; then what flips, then what drifts. */
function nightOrder(one, other) {
  return (
    Number(other.red) - Number(one.red) ||
    (other.since ?? -2) - (one.since ?? -2) ||
    other.flaked - one.flaked ||
    other.flips - one.flips ||
    Number(other.less_exact) - Number(one.less_exact) ||
    Number(other.slower) - Number(one.slower) ||
    (number(other.drift) || 0) - (number(one.drift) || 0)
  );
}

const nightLaw = (law) => (law.contract ? `${law.contract}/${law.law}` : law.law);

/** The filters that a law over nights can be asked for: subject, law and words. */
function seenAtNight(of) {
  const asked = of.q.toLowerCase().split(/\s+/).filter(Boolean);
  return past.laws.filter(
    (law) =>
      (of.subject === "" || law.subject === (of.subject === NONE ? "" : of.subject)) &&
      (of.law === "" || nightLaw(law) === of.law || nightLaw(law).startsWith(`${of.law}::`)) &&
      asked.every((word) => `${law.subject} ${nightLaw(law)}`.toLowerCase().includes(word)),
  );
}

/** What a night ran with that the one before did not. */
function newVersions(before, night) {
  const changed = ["torch", "kit"].filter((field) => before[field] !== night[field]);
  const told = changed.map((field) => `${field} ${before[field]} → ${night[field]}`).join(", ");
  return told && `; new: ${told}`;
}

/** A bar a night: its outcomes in proportion, what needs a person at the foot. */
function nightBars() {
  const { nights } = past;
  const most = Math.max(1, ...nights.map((night) => night.counts.reduce((sum, one) => sum + one, 0)));
  return el(
    "ol",
    { class: "nights" },
    nights.map((night, at) => {
      const whole = night.counts.reduce((sum, one) => sum + one, 0);
      const red = night.counts.reduce((sum, one, place) => sum + (REDNESS[place] ? one : 0), 0);
      const bar = el("span", { class: "night" }, bars(night.counts));
      bar.style.height = `${Math.max(4, (100 * whole) / most)}%`;
      const outcome = `${red ? `${count(red)} red of ` : ""}${plural(whole, "case")}`;
      const cut = night.whole ? "" : "; did not finish";
      const news = at > 0 ? newVersions(nights[at - 1], night) : "";
      const source = night.source && `, ${night.source}`;
      const beside = night.reasons.map((reason) => `; ${reason}`).join("");
      const told = `${night.date} UTC, ${night.file}${source}: ${outcome}${beside}, torch ${night.torch}${cut}${news}`;
      const wrong = !night.whole || night.reasons.length > 0;
      return el("li", { title: told, "aria-label": told, "data-cut": wrong, "data-new": news !== "" }, bar);
    }),
  );
}

/** One night of a law: the shape of its worst outcome, small. */
function nightCell(point, night) {
  const when = past.nights[night].date;
  if (point === null) return el("td", { class: "untried", title: `${when}: not tried` });
  const [worst, red, whole] = point;
  const told = `${when}: ${OUTCOMES[worst]}, ${red ? `${count(red)} red of ` : ""}${plural(whole, "case")}`;
  return el("td", { title: told, "data-red": REDNESS[worst] }, glyph(OUTCOMES[worst], told));
}

/** One case night by night, and since when it is as it is. */
function nightsPart(detail) {
  if (!hasHistory() || !detail.nights) return null;
  const ends = [...detail.nights].map((letter) => OUTCOMES[past.letters.indexOf(letter)]);
  const tried = [...ends.keys()].filter((night) => ends[night]);
  const list = el(
    "ol",
    { class: "case-nights" },
    ends.map((outcome, at) => {
      const night = past.nights[at];
      const told = [`${night.date} UTC`, night.source, outcome || "not tried"].filter(Boolean).join(", ");
      return el("li", { title: told, "data-red": RED.has(outcome) }, outcome && glyph(outcome, told));
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

/** When it last turned, with the commits on either side. */
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

/** A line of figures over the nights; gaps where there are none. */
function spark(values, log) {
  const shown = values.map((value) => (value === null ? null : number(value)));
  const real = shown.filter((value) => value !== null && Number.isFinite(value) && (!log || value > 0));
  if (real.length < 2) return null;
  const scale = log ? Math.log10 : (value) => value;
  const low = log ? Math.min(...real.map(scale)) : 0;
  const high = Math.max(...real.map(scale), low + 1e-12);
  const x = (at) => 2 + (76 * at) / Math.max(1, shown.length - 1);
  const y = (value) => (log && value === 0 ? 17 : 16 - (13 * (scale(value) - low)) / (high - low));
  const points = shown.flatMap((value, at) =>
    value === null || !Number.isFinite(value) ? [] : [`${x(at)},${y(value)}`],
  );
  const [lastX, lastY] = points.at(-1).split(",");
  return svg(
    "svg",
    { class: "spark", viewBox: "0 0 80 20", "aria-hidden": "true" },
    svg("path", { d: `M${points.join(" L")}` }),
    svg("circle", { cx: lastX, cy: lastY, r: 2 }),
  );
}

/** Formats a ratio; a ratio without information is shown without figures. */
function times(value) {
  if (value === null) return "";
  const ratio = number(value);
  return ratio >= 9.95 || !Number.isFinite(ratio) ? `×${figure(value)}` : `×${ratio.toFixed(1)}`;
}
const nightName = (place) => (place === null ? "" : place < 0 ? "earlier" : past.nights[place].date.slice(0, 10));

function nightRow(law) {
  // A test without a subject has no law but its file; its name is looked for.
  const tonight = law.contract ? { law: nightLaw(law) } : { q: law.law };
  const open = () => go({ view: "cases", subject: law.subject || NONE, ...tonight });
  const last = (at) => law.points.map((point) => (point === null ? null : point[at]));
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
      !PLAIN && el("span", { class: "faint small whose" }, breakable(subjectName(law.subject))),
    ),
    law.points.map(nightCell),
    el("td", { class: "told" }, law.red ? el("b", { class: "bad", text: nightName(law.since) }) : ""),
    el("td", { class: "told", text: nightName(law.first_bad) }),
    el("td", { class: "told", text: law.flips ? String(law.flips) : "" }),
    el("td", { class: "told", text: law.flake_rate ? percent(law.flake_rate, 1) : "" }),
    el(
      "td",
      { class: "told" },
      spark(last(3), false),
      el("span", { class: law.slower ? "bad" : "", text: times(law.pace) }),
    ),
    el(
      "td",
      { class: "told" },
      spark(last(4), true),
      el("span", { class: law.less_exact ? "bad" : "", text: times(law.drift) }),
    ),
  );
}

function nightTable(laws) {
  const heads = [
    ["red since", "the night since which it is red"],
    ["first bad", "the first night that was red"],
    ["flips", "times that the law went from green to red or back"],
    ["flakes", "steps from a night to the next at which a case flipped under the same torch and kit"],
    ["time", "of the median case; the last night against the median of those before"],
    ["error", "the largest, on a log scale; the last night against the median of those before"],
  ];
  const across = past.nights.map((night, at) =>
    el(
      "th",
      { scope: "col", class: "date", title: night.date },
      at % 7 === 0 ? el("span", { text: night.date.slice(5, 10) }) : "",
    ),
  );
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "over", "aria-label": "Laws over the nights" },
      el(
        "thead",
        null,
        el(
          "tr",
          null,
          el("th"),
          across,
          heads.map(([name, title]) => el("th", { scope: "col", class: "told", title, text: name })),
        ),
      ),
      el("tbody", null, laws.map(nightRow)),
    ),
  );
}

function drawHistory(into, of) {
  if (!hasHistory()) {
    put(
      into,
      el("p", {
        class: "nothing",
        text: "This page was made without a history: everyrank page --history FOLDER has one.",
      }),
    );
    return;
  }
  const laws = seenAtNight(of);
  const moved = laws.filter(stirred).sort(nightOrder);
  const still = laws.filter((law) => !stirred(law));
  const rest = el(
    "details",
    { class: "still" },
    el("summary", { text: `${plural(still.length, "law")} that never changed` }),
  );
  rest.addEventListener("toggle", () => rest.open && rest.children.length === 1 && rest.append(nightTable(still)));
  put(
    into,
    el(
      "section",
      { class: "card wide" },
      el(
        "header",
        null,
        el("h2", { text: plural(past.nights.length, "night") }),
        el("span", { class: "sum", text: past.earlier ? `and ${count(past.earlier)} earlier` : "" }),
      ),
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
    el(
      "section",
      { class: "card wide" },
      el(
        "header",
        null,
        el("h2", { text: "Laws that moved" }),
        el("span", { class: "sum", text: plural(moved.length, "law") }),
      ),
      moved.length
        ? nightTable(moved)
        : el("p", { class: "faint", text: "None: each law came out each night as it did before." }),
      still.length > 0 && rest,
    ),
  );
}
