// Draws every figure from the JSON beside it, in the colours of the reader's scheme.
(function () {
  "use strict";
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var CONFIG = { displayModeBar: false, displaylogo: false, responsive: true, showLink: false, scrollZoom: false };

  function colours(print) {
    var style = getComputedStyle(document.documentElement);
    var read = function (name) { return style.getPropertyValue(name).trim(); };
    return print
      ? { ink: read("--print-ink"), line: read("--print-line"), page: read("--print-page") }
      : { ink: read("--ink"), line: read("--line"), page: read("--page") };
  }

  // plotly gives the same names to the axes of a figure as its layout has keys: xaxis, yaxis2, ...
  function paint(layout, c) {
    var change = {
      "font.color": c.ink,
      "hoverlabel.bgcolor": c.page,
      "hoverlabel.bordercolor": c.line,
      "hoverlabel.font.color": c.ink
    };
    Object.keys(layout).forEach(function (key) {
      if (/^[xy]axis\d*$/.test(key)) {
        change[key + ".gridcolor"] = c.line;
        change[key + ".linecolor"] = c.line;
        change[key + ".tickcolor"] = c.line;
      }
    });
    (layout.annotations || []).forEach(function (annotation, i) {
      if (annotation.name === "plate") change["annotations[" + i + "].bgcolor"] = c.page;
    });
    return change;
  }

  var plots = Array.prototype.slice.call(document.querySelectorAll(".plot"));
  plots.forEach(function (plot) {
    var source = document.querySelector('script[data-for="' + plot.id + '"]');
    var figure = JSON.parse(source.textContent);
    Plotly.newPlot(plot, figure.data, figure.layout, CONFIG).then(function () {
      return Plotly.relayout(plot, paint(figure.layout, colours(false)));
    });
  });

  function repaint(print) {
    plots.forEach(function (plot) {
      if (plot.layout) Plotly.relayout(plot, paint(plot.layout, colours(print)));
    });
  }
  dark.addEventListener("change", function () { repaint(false); });
  window.addEventListener("beforeprint", function () { repaint(true); });
  window.addEventListener("afterprint", function () { repaint(false); });
})();
