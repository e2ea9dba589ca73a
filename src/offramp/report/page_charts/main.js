// Start: charts are drawn when they scroll near, again when the theme changes, and all for print.

const roots = [...document.querySelectorAll("[data-section]")];
const all = JSON.parse(document.getElementById("data").textContent);
const sections = roots.map((root) => new Comparison(root, all[root.dataset.section]));

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const section = sections.find((one) => one.root === entry.target);
    if (entry.isIntersecting && !section.drawn) section.render();
  }
}, { rootMargin: "800px" });
roots.forEach((root) => watcher.observe(root));

const redraw = (wanted = (section) => section.drawn) => sections.filter(wanted).forEach((section) => section.render());

function printing(isPrinting) {
  if (isPrinting === document.documentElement.hasAttribute("data-printing")) return;  // one print raises both events
  document.documentElement.toggleAttribute("data-printing", isPrinting);
  redraw(isPrinting ? () => true : undefined);
}
window.addEventListener("beforeprint", () => printing(true));
window.addEventListener("afterprint", () => printing(false));
window.matchMedia("print").addEventListener("change", (event) => printing(event.matches));

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) requestAnimationFrame(() => redraw());  // phones change the height while scrolling
  width = window.innerWidth;
});

const THEMES = ["system", "light", "dark"];
const toggle = document.getElementById("theme");

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  toggle.querySelector("span").textContent = theme;
  redraw();
}

// Pages on disk may have no storage; the choice is then forgotten.
function remembered(theme) {
  try {
    if (theme) localStorage.setItem("offramp-theme", theme);
    return localStorage.getItem("offramp-theme");
  } catch { return null; }
}

toggle.hidden = false;
toggle.addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "system";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  remembered(next);
  setTheme(next);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
const before = remembered();
if (THEMES.includes(before)) setTheme(before);
