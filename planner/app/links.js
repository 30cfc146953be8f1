// Streamlit sends typed text on a timer, for the page shown at that time. It would undo a click on
// a link that came before it, as every tap does. The click is queued behind the timer.
if (!window.linksWait) {
  window.linksWait = true;
  document.addEventListener("click", click => {
    const link = click.target.closest("[data-testid=stPageLink-NavLink]");
    if (!link || !click.isTrusted) return;
    click.preventDefault();
    click.stopPropagation();
    setTimeout(() => link.click());
  }, true);
}
