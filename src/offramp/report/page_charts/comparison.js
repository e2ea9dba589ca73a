// One comparison: its state, its controls, and the charts that follow them.

class Comparison {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.hidden = new Set(data.hidden);
    this.drawn = false;
    this.chosen = { left: data.reference, right: this.bestRival() };
    this.method = this.chosen.right;
    this.exit = Math.floor((this.numExits - 1) / 2);
    this.setUpLegend();
    this.setUpBudget();
    this.setUpExit();
  }

  get methods() { return this.data.methods; }
  get tellsWays() { return this.data.kind !== "logits"; }
  get numExits() { return this.data.references.fixed.length; }
  get budget() { return Number(this.find('[data-control="budget"]').value); }
  get shown() { return this.methods.filter((method) => !this.hidden.has(method.name)); }
  get place() { return this.methods[0].points.budgets.findIndex((budget) => Math.round(100 * budget) === this.budget); }

  find(selector) { return this.root.querySelector(selector); }
  chart(name) { return this.find(`[data-chart="${name}"]`); }

  // The most accurate of the other methods at half of the compute.
  bestRival() {
    const others = this.methods.map((_, index) => index).filter((index) => index !== this.data.reference);
    const accuracy = (index) => this.methods[index].points.accuracies[49];
    return others.reduce((best, index) => (accuracy(index) > accuracy(best) ? index : best), others[0] ?? this.data.reference);
  }

  setUpLegend() {
    const place = this.find('[data-part="legend"]');
    const chip = (key, label, swatch) => {
      const made = element("button", { type: "button", "aria-pressed": String(!this.hidden.has(key)), class: "chip" }, swatch, label);
      made.addEventListener("click", () => {
        const isHidden = this.hidden.delete(key) ? false : Boolean(this.hidden.add(key));
        made.setAttribute("aria-pressed", String(!isHidden));
        this.render();
      });
      place.append(made);
    };
    for (const method of this.methods) chip(method.name, method.label, swatchOf(method));
    chip("\0reachable", "Reachable", element("span", { class: "swatch dash" }));
    chip("\0oracle", "Oracle", element("span", { class: "swatch oracle" }));
    chip("\0mix", "Mix of two fixed exits", element("span", { class: "swatch mix" }));
    chip("\0full", "Full network", element("span", { class: "swatch full" }));
    chip("\0fixed", "Each exit alone", element("span", { class: "swatch fixed" }));
  }

  setUpBudget() {
    const slider = this.find('[data-control="budget"]');
    const cheapest = Math.min(...this.methods.map((method) => method.points.val_costs[0]));
    slider.min = String(Math.min(99, Math.max(1, Math.ceil(100 * cheapest))));
    slider.addEventListener("input", () => this.moveBudget());
    for (const side of ["left", "right"]) {
      const choice = this.find(`[data-control="${side}"]`);
      this.fillChoice(choice, this.chosen[side]);
      choice.addEventListener("change", () => { this.chosen[side] = Number(choice.value); this.renderBudget(); });
    }
  }

  setUpExit() {
    const choice = this.find('[data-control="method"]');
    this.fillChoice(choice, this.method);
    choice.addEventListener("change", () => { this.method = Number(choice.value); this.renderExit(); });
    const segments = this.find('[data-control="exit"]');
    const group = `exit-${this.root.dataset.section}`;
    for (let index = 0; index < this.numExits; index += 1) {
      const button = element("input", { type: "radio", name: group, value: String(index), id: `${group}-${index}` });
      button.checked = index === this.exit;
      button.addEventListener("change", () => { this.exit = index; this.renderExit(); });
      segments.append(button, element("label", { for: `${group}-${index}` }, String(index)));
    }
  }

  fillChoice(choice, selected) {
    this.methods.forEach((method, index) => choice.append(element("option", { value: String(index) }, method.label)));
    choice.value = String(selected);
  }

  render() {
    this.drawn = true;
    for (const figure of ["ece", "eefp", "augrc"]) drawExits(this, figure);
    this.renderBudget();
  }

  // Numbers change at once, charts once per frame, however fast the slider moves.
  moveBudget() {
    this.showBudget();
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      drawTradeoff(this);
      drawShares(this);
      drawHistogram(this);
    });
  }

  renderBudget() {
    this.showBudget();
    drawTradeoff(this);
    drawShares(this);
    drawHopeless(this);
    this.renderExit();
  }

  showBudget() {
    const slider = this.find('[data-control="budget"]');
    const text = `${this.budget}${NARROW_SPACE}%`;
    this.find('[data-value="budget"]').textContent = text;
    slider.setAttribute("aria-valuetext", `${this.budget} per cent of the network without exits`);
    showChosen(this);
    showHopeless(this);
  }

  renderExit() {
    showExitFacts(this);
    drawReliability(this);
    drawHistogram(this);
  }
}
