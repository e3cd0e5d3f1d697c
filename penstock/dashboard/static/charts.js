// The charts of a job, drawn by Plotly, which is loaded from this server once.

let loading = null;

function library() {
  loading ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "/plotly.js";
    script.onload = () => done(window.Plotly);
    script.onerror = () => { loading = null; failed(new Error("the charts could not be loaded")); };
    document.head.append(script);
  });
  return loading;
}

function layout(title, more = {}) {
  const style = getComputedStyle(document.body);
  const color = (name) => style.getPropertyValue(name);
  const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), automargin: true };
  return {
    title: { text: title, font: { size: 14 }, x: 0, xanchor: "left" },
    margin: { l: 45, r: 10, t: 34, b: 30 },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: { color: color("--text"), family: "system-ui, sans-serif", size: 12 },
    xaxis: { ...axis, type: "date", nticks: window.innerWidth < 640 ? 3 : 5, tickangle: 0 }, yaxis: { ...axis, rangemode: "tozero" },
    legend: { orientation: "h", y: -0.35 }, showlegend: true, ...more,
  };
}

// Plotly takes tags in names for markup.
const plain = (name) => name.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

const lines = (times, by, suffix) =>
  Object.entries(by).map(([name, y]) => ({ name: plain(name) + suffix, x: times, y, type: "scatter", mode: "lines", line: { width: 2 } }));

export async function draw(charts, series) {
  const plotly = await library();
  const times = series.times.map((ms) => new Date(ms));
  const options = { displayModeBar: false, responsive: true };
  const bars = Object.entries(series.parts).map(([name, y]) => ({ name, x: times, y, type: "bar" }));
  const shown = [
    [charts.rate, [...lines(times, series.read, " read"), ...lines(times, series.sent, " sent")], layout("Messages a second")],
    [charts.lag, lines(series.lag_times.map((ms) => new Date(ms)), series.lag, ""), layout("Messages that wait in the inputs")],
    [charts.parts, bars, layout("The mean batch by part, in milliseconds", { barmode: "stack" })],
  ];
  const drawn = shown.filter(([, data]) => data.length);
  await Promise.all(drawn.map(([place, data, look]) => plotly.react(place, data, look, options)));
}
