// Answers searches as the site does: node tests/site_search.js SITE WORDS... prints the pages of each search as JSON.
const fs = require("fs")
const path = require("path")

const [site, ...searches] = process.argv.slice(2)
const workers = path.join(site, "assets", "javascripts", "workers")
const worker = fs.readdirSync(workers).find((name) => /^search\..*\.js$/.test(name))
const handlers = []
let resolveNext
globalThis.self = globalThis
globalThis.addEventListener = (type, handler) => type === "message" && handlers.push(handler)
globalThis.postMessage = (message) => resolveNext(message)
new Function(fs.readFileSync(path.join(workers, worker), "utf8"))()

function send(message) {
  return new Promise((resolve) => {
    resolveNext = resolve
    handlers.forEach((handler) => handler({data: message}))
  })
}

// The kinds of messages of Material for MkDocs: 0 sets the index up, 2 searches, 3 is the result.
async function main() {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json"), "utf8"))
  await send({type: 0, data: {...index, options: {suggest: false}}})
  const pages = {}
  for (const words of searches) {
    const result = await send({type: 2, data: words})
    pages[words] = result.data.items.map((group) => group[0].location)
  }
  console.log(JSON.stringify(pages))
}

main()
