// Tables and blocks of code scroll: a keyboard needs the focus there.
addEventListener("load", () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) box.tabIndex = 0;
});
// A flag that is pasted into the search begins with hyphens, which the search would read as "without".
document.addEventListener("input", ({ target }) => {
  if (target.matches("[data-md-component=search-query]") && /(^|\s)-/.test(target.value)) {
    target.value = target.value.replace(/(^|\s)-+/g, "$1");
  }
}, true);
