// The map of a tensor over ranks: which rank holds which part of two of its dimensions, as a picture and as a list.

const MAP = { width: 300, least: 44, most: 190, left: 34, top: 18, foot: 2 };

/** How many lines the list below a map has at most. */
const LISTED_PARTS = 12;

/** Name the ranks of a part: none, all, or which. */
function holders(ranks, { size, alike }) {
  if (!ranks.length) return alike ? "equal to another part" : "no rank";
  if (ranks.length < size || size < 2) return ranges(ranks);
  return size === 2 ? "both ranks" : `all ${size} ranks`;
}

/** Return the size of the picture: wide matrices are low and tall ones narrow, within limits. */
function mapSize(rows, columns) {
  if (rows === 1) return [MAP.width, MAP.least];
  const height = Math.min(MAP.most, Math.max(MAP.least, (MAP.width * rows) / columns));
  return [Math.max(MAP.width / 2, Math.min(MAP.width, (height * columns) / rows)), height];
}

/** Draw a map. Each set of ranks has a colour, and each part the numbers of its ranks. */
function mapPicture(map, size) {
  const [rows, columns] = map.drawn.length > 1 ? map.drawn.map((axis) => map.shape[axis]) : [1, map.shape[0]];
  const [width, height] = mapSize(rows, columns);
  const sets = [...new Set(map.regions.map(({ ranks }) => ranks.join()))].filter(Boolean);
  const x = (column) => MAP.left + (width * column) / columns;
  const y = (row) => MAP.top + (height * row) / rows;
  const chart = svg("svg", {
    class: map.partial ? "map partial" : "map",
    viewBox: `0 0 ${MAP.left + width + MAP.foot} ${MAP.top + height + MAP.foot}`,
    width: MAP.left + width + MAP.foot,
    role: "img",
    "aria-label": `which rank holds which part: ${partTexts(map, size).join("; ")}`,
  });
  const [down, across] = map.drawn.length > 1 ? map.drawn : [null, map.drawn[0]];
  chart.append(axisText(MAP.left + width / 2, MAP.top - 6, `dim ${across}: ${count(columns)}`));
  if (down !== null) {
    const text = axisText(0, 0, `dim ${down}: ${count(rows)}`);
    text.setAttribute("transform", `translate(${MAP.left - 8} ${MAP.top + height / 2}) rotate(-90)`);
    chart.append(text);
  }
  for (const { ranks, box } of map.regions) {
    const [top, bottom, left, right] = [y(box[0]), y(box[1]), x(box[2]), x(box[3])];
    const color = `var(--many-${sets.indexOf(ranks.join()) % 8})`;
    chart.append(
      svg(
        "rect",
        {
          class: ranks.length ? "held" : map.alike ? "alike" : "lost",
          x: left,
          y: top,
          width: right - left,
          height: bottom - top,
          style: ranks.length ? { "--held": color } : null,
        },
        svg("title", null, `${holders(ranks, { size, alike: map.alike })}: ${boxText(map, box)}`),
      ),
    );
    if (!ranks.length && !map.alike) chart.append(cross(left, right, top, bottom));
    const text = ranks.length ? ranges(ranks).replace(/^ranks? /, "") : map.alike ? "" : "none";
    if (right - left > 6 * text.length + 4 && bottom - top > 12)
      chart.append(svg("text", { class: "ranks-of-part", x: (left + right) / 2, y: (top + bottom) / 2 + 4 }, text));
  }
  return chart;
}

const axisText = (x, y, text) => svg("text", { class: "tick", x, y, "text-anchor": "middle" }, text);

/** Cross out a part that no rank holds. */
const cross = (left, right, top, bottom) =>
  svg("path", { class: "cross", d: `M${left} ${top}L${right} ${bottom}M${right} ${top}L${left} ${bottom}` });

const rangeText = (from, end) => (end - from === 1 ? String(from) : `${from}-${end - 1}`);

/** Name a part by its indices: "0-11 x 0-17". */
const boxText = ({ drawn }, [top, bottom, left, right]) =>
  drawn.length > 1 ? `${rangeText(top, bottom)} x ${rangeText(left, right)}` : rangeText(left, right);

/** Return the parts of each set of ranks as texts. */
function partTexts(map, size) {
  const bySet = grouped(map.regions, ({ ranks }) => ranks.join());
  const texts = [...bySet.values()].map((regions) => {
    const whole = regions.length === 1 && map.regions.length === 1;
    const boxes = whole
      ? "all of it"
      : regions
          .slice(0, 4)
          .map(({ box }) => boxText(map, box))
          .join(", ");
    const more = regions.length > 4 ? ` and ${count(regions.length - 4)} more parts` : "";
    return `${holders(regions[0].ranks, { size, alike: map.alike })}: ${boxes}${more}`;
  });
  const left = texts.length - LISTED_PARTS;
  return left > 1 ? [...texts.slice(0, LISTED_PARTS), `${count(left)} more sets of ranks`] : texts;
}

/** Show a map with the names of the tensors that have it. */
function mapFigure(map, names, size) {
  const notes = [
    map.partial && "Each rank has a term of a sum.",
    (map.also_cut || []).length && `Cut along dim ${map.also_cut.join(" and ")}, too, which is not drawn.`,
    !(map.regions || []).length && "Its parts are too many or too fine to draw.",
  ].filter(Boolean);
  return el(
    "figure",
    { class: "map-of-ranks" },
    el(
      "figcaption",
      null,
      names.map((name, position) => [position > 0 && ", ", el("code", null, breakable(name))]),
      el("span", { class: "faint", text: ` ${map.shape.map(count).join(" x ")}` }),
    ),
    (map.regions || []).length > 0 && [
      mapPicture(map, size),
      el(
        "ul",
        { class: "plain small" },
        partTexts(map, size).map((text) => el("li", { text })),
      ),
    ],
    notes.map((text) => el("p", { class: "small faint", text })),
  );
}

/** Show the maps of these tensors, each once. */
function mapsOf(call, tensors) {
  const mapped = call.mapped || {};
  const known = [...new Set(tensors)].filter((name) => mapped[name] !== undefined);
  return [...grouped(known, (name) => mapped[name])].map(([index, names]) =>
    mapFigure(call.maps[index], names, call.ranks),
  );
}

/** Make the table of where tensors were seen to be over the groups of ranks, in the words of DTensor. */
function placementsOf(call) {
  const rows = call.placements || [];
  if (!rows.length) return null;
  const unknown = "cut in another way than DTensor has a word for, or not to be seen";
  const seen = (text) => el("td", text ? { text } : { text: "?", title: unknown });
  const named = ({ tensors, left_out: left }) => [
    tensors.map((name, position) => [position > 0 && ", ", el("code", null, breakable(name))]),
    left > 0 && ` and ${count(left)} more`,
  ];
  const heads = [...call.axes.map((name) => `over ${name}`), "", "tensors"];
  return el(
    "details",
    { class: "placements" },
    el("summary", { text: "Where tensors were seen to be" }),
    el(
      "table",
      { class: "errors" },
      headRow(heads.map((text) => el("th", { scope: "col", text }))),
      el(
        "tbody",
        null,
        rows.map((row) => el("tr", null, row.seen.map(seen), el("td", { text: row.kind }), el("td", null, named(row)))),
      ),
    ),
  );
}
