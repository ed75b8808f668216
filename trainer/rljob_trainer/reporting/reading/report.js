"use strict";
const form = document.getElementById("filter");
if (form) {
  const rows = Array.from(document.querySelectorAll("#samples tbody tr"));
  const steps = Array.from(new Set(rows.map((row) => row.dataset.step)));
  const ends = new Set([steps[0], steps[Math.floor((steps.length - 1) / 2)], steps[steps.length - 1]]);
  const ofStep = (step, wanted) => wanted === "all" || (wanted === "ends" ? ends.has(step) : step === wanted);
  const ofReward = (reward, wanted) => wanted === "any" || (wanted === "good") === (Number(reward) > 0);
  const show = () => {
    const wanted = new FormData(form);
    const text = wanted.get("text").toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = ofStep(row.dataset.step, wanted.get("step")) && ofReward(row.dataset.reward, wanted.get("reward"))
        && (text === "" || row.textContent.toLowerCase().includes(text));
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    document.getElementById("shown").textContent = shown + " of " + rows.length;
  };
  form.hidden = false;
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
}
