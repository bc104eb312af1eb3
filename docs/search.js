/* How the search ranks pages; Sphinx includes this file in that of its search page.

Sphinx alone shows only pages that have every word of a query, in almost arbitrary order. Here a rare
word counts more than a frequent one, a word in a title more than one in the text, and a page that
has most of the words is found, too. */
/* Pages that begin with a symptom come first, records last. */
const weightOf = (page) =>
  page.startsWith("howto/") ? 1.3 : /^(facts|peers|promises|versions|libraries|design)$/.test(page) ? 0.6 : 1;

const rankPages = (searchTerms, excludedTerms) => {
  const { terms, titleterms, docnames, titles, filenames } = Search._index;
  const filesOf = (index, word) => (Object.hasOwn(index, word) ? [index[word]].flat() : []);
  const lengths = new Array(docnames.length).fill(0);
  for (const word of Object.keys(terms)) for (const file of filesOf(terms, word)) lengths[file] += 1;
  const usual = lengths.reduce((a, b) => a + b, 0) / lengths.length;
  const found = new Map();
  let known = 0;
  for (const word of searchTerms) {
    const like = (index) =>
      Object.hasOwn(index, word) || word.length < 3
        ? filesOf(index, word)
        : Object.keys(index).filter((term) => term.includes(word)).flatMap((term) => filesOf(index, term));
    const inHeading = new Set(like(titleterms));
    const files = new Set([...like(terms), ...inHeading]);
    if (!files.size) continue;
    known += 1;
    const rarity = Math.log(1 + docnames.length / files.size);
    for (const file of files) {
      const one = found.get(file) || { score: 0, words: 0 };
      const named = titles[file].toLowerCase().includes(word) ? 3 : inHeading.has(file) ? 1 : 0;
      one.score += rarity * (named + 1 / (0.5 + (0.5 * lengths[file]) / usual));
      one.words += 1;
      found.set(file, one);
    }
  }
  for (const word of excludedTerms) {
    for (const file of [...filesOf(terms, word), ...filesOf(titleterms, word)]) found.delete(file);
  }
  return [...found]
    .filter(([, one]) => 2 * one.words > known)
    .map(([file, { score, words }]) => {
      const rank = (score * words * weightOf(docnames[file])) / known;
      return [docnames[file], titles[file], "", null, rank, filenames[file], SearchResultKind.text];
    });
};
Search.performTermsSearch = rankPages;
