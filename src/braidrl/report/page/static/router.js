// The state of the view is in the URL fragment: `#rollout=ID&color=entropy`, `#view=rollouts&env=short`.

export const params = () => new URLSearchParams(location.hash.slice(1));

export const link = (values) => {
  const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return `#${new URLSearchParams(kept)}`;
};

export function go(values) {
  location.hash = link(values);
}

// Changes parts of the URL without a history entry and without redrawing.
export function note(values) {
  const all = { ...Object.fromEntries(params()), ...values };
  history.replaceState(null, "", link(all));
}
