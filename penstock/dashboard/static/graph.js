// Draws stages and streams in columns from left to right, and what flows between them.

const SPACE = "http://www.w3.org/2000/svg";
const WIDTH = 190, GAP = 110, LINE = 16, PAD = 8, ROW_GAP = 22;

function svg(tag, properties = {}, ...children) {
  const made = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
export const rate = (value) =>
  value === null || value === undefined ? "" : `${value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 })}/s`;

function nodesOf(graph) {
  const nodes = new Map();
  for (const stage of graph.stages) {
    const shown = stage.operators.slice(0, 8).map((op) => op.id + (op.stores.length ? ` [${op.stores.join(", ")}]` : ""));
    const more = stage.operators.length > 8 ? [`and ${stage.operators.length - 8} more`] : [];
    nodes.set(stage.number, { kind: "stage", title: `stage ${stage.number}`, lines: [...shown, ...more], rate: stage.rate });
  }
  for (const stream of graph.streams) {
    const lines = stream.lag ? [`${stream.lag} not read yet`] : [];
    nodes.set(stream.name, { kind: "stream", title: stream.name, lines, rate: stream.rate });
  }
  return nodes;
}

// Edges that lead back to a node on the way to their source do not count: a job may write what it reads.
function forwardEdges(nodes, edges) {
  const next = new Map([...nodes.keys()].map((key) => [key, edges.filter((edge) => edge.source === key)]));
  const forward = [], done = new Set(), way = new Set();
  const visit = (key) => {
    way.add(key);
    for (const edge of next.get(key)) {
      if (way.has(edge.target)) continue;
      forward.push(edge);
      if (!done.has(edge.target)) visit(edge.target);
    }
    way.delete(key);
    done.add(key);
  };
  const targets = new Set(edges.map((edge) => edge.target));
  const sources = [...nodes.keys()].filter((key) => !targets.has(key));
  for (const key of [...sources, ...nodes.keys()]) if (!done.has(key)) visit(key);
  return forward;
}

// The longest way from an input.
function columnsOf(nodes, edges) {
  const column = new Map([...nodes.keys()].map((key) => [key, 0]));
  const forward = forwardEdges(nodes, edges);
  for (let round = 0; round < nodes.size; round++) {
    for (const edge of forward) {
      column.set(edge.target, Math.max(column.get(edge.target), column.get(edge.source) + 1));
    }
  }
  return column;
}

export function drawing(graph) {
  const nodes = nodesOf(graph), column = columnsOf(nodes, graph.edges);
  const bottom = new Map();
  let width = 0, height = 0;
  for (const [key, node] of nodes) {
    const at = column.get(key);
    node.x = at * (WIDTH + GAP) + 4;
    node.y = (bottom.get(at) ?? -ROW_GAP) + ROW_GAP + 4;
    node.height = PAD * 2 + LINE * (1 + node.lines.length);
    bottom.set(at, node.y + node.height);
    width = Math.max(width, node.x + WIDTH + 4);
    height = Math.max(height, node.y + node.height + 8);
  }
  const made = svg("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "img" },
    svg("title", {}, "The graph of the job"));
  const out = new Map();
  for (const edge of graph.edges) {
    const from = nodes.get(edge.source), to = nodes.get(edge.target);
    const down = out.get(edge.source) ?? 0;
    out.set(edge.source, down + 1);
    const x1 = from.x + WIDTH, y1 = from.y + PAD + LINE / 2 + Math.min(down * 12, from.height - LINE);
    const x2 = to.x, y2 = to.y + PAD + LINE / 2;
    const bend = Math.max(30, (x2 - x1) / 2);
    made.append(svg("path", { d: `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2 - 5},${y2} m-5,-4 l5,4 l-5,4` }));
    made.append(svg("text", { x: x2 - 10, y: y2 - 5, "text-anchor": "end", class: "quiet" }, rate(edge.rate)));
  }
  for (const node of nodes.values()) {
    const texts = [[node.title, "name"], ...node.lines.map((line) => [line, ""])];
    const group = svg("g", { class: node.kind }, svg("title", {}, [node.title, ...node.lines].join("\n")),
      svg("rect", { x: node.x, y: node.y, width: WIDTH, height: node.height, rx: 6 }));
    texts.forEach(([text, kind], row) =>
      group.append(svg("text", { x: node.x + PAD, y: node.y + PAD + 12 + row * LINE, class: row && node.kind === "stream" ? "lag" : kind }, cut(text, row || node.rate === null ? 28 : 20))));
    if (node.rate !== null) {
      group.append(svg("text", { x: node.x + WIDTH - PAD, y: node.y + PAD + 12, "text-anchor": "end", class: "quiet" }, rate(node.rate)));
    }
    made.append(group);
  }
  return made;
}
