// Prints what the built site's search finds, a line of JSON for each question: node search.js SITE QUESTION...
// It runs the search worker of the site itself, as a browser does.
const fs = require("fs"), path = require("path"), vm = require("vm");
const [site, ...questions] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find(name => name.endsWith(".js"));
let receive, answered;
const self = {
  addEventListener: (kind, handler) => { receive = handler; },
  postMessage: message => answered(message),
  location: {href: "http://site/"},
  console, URL,
};
const context = vm.createContext(self);
context.self = context;
vm.runInContext(fs.readFileSync(path.join(folder, worker), "utf8"), context);
const ask = (type, data) => new Promise(resolve => { answered = resolve; receive({data: {type, data}}); });
const SETUP = 0, QUERY = 2;

(async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json")));
  await ask(SETUP, {...index, options: {suggest: false}});
  for (const question of questions) {
    const found = (await ask(QUERY, question)).data.items;
    console.log(JSON.stringify(found.map(pages => pages[0].location)));
  }
})();
