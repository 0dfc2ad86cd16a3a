// The site is made of docs/ as it is. docs/README.md is its front page, and the lists there are its menu.
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const pages = path.join(path.dirname(fileURLToPath(import.meta.url)), '..', 'docs')
const repository = 'https://github.com/ratelimitd/ratelimitd'

// A heading's anchor, as GitHub makes it. So links within the Markdown lead to the same place on both.
const anchor = (text) => text.trim().toLowerCase().replace(/[^\p{L}\p{N}\-_ ]/gu, '').replace(/ /g, '-')

const served = (page) => '/' + page.replace(/README\.md$/, '').replace(/\.md$/, '')

// What only contributors need is in the repository, and not on the site.
const offSite = ['contributing/', 'understand/decisions/']
const isOffSite = (page) => offSite.some((folder) => page.startsWith(folder))

// The menu: each heading of docs/README.md, and the pages of the site that its list names.
function menu() {
  const groups = []
  for (const line of readFileSync(path.join(pages, 'README.md'), 'utf8').split('\n')) {
    const heading = line.match(/^## (.+)$/)
    if (heading) groups.push({ text: heading[1], items: [] })
    for (const [, text, page] of line.matchAll(/\[([^\]]+)\]\(([^)]+\.md)\)/g)) {
      if (groups.length && !isOffSite(page)) groups.at(-1).items.push({ text, link: served(page) })
    }
  }
  return groups.filter((g) => g.items.length > 0)
}

// Links to what is not a page of the site, such as an example or a source file, lead to the repository.
function repositoryLinks(md) {
  md.core.ruler.push('repository_links', (state) => {
    const folder = path.dirname(state.env.realPath ?? state.env.path)
    for (const block of state.tokens) {
      for (const token of block.children ?? []) {
        const href = token.type === 'link_open' ? token.attrGet('href') : null
        if (!href || /^([a-z]+:|#)/.test(href)) continue
        const target = path.resolve(folder, href.split('#')[0])
        const inside = path.relative(pages, target)
        if (inside.startsWith('..') || !target.endsWith('.md') || isOffSite(inside)) {
          token.attrSet('href', `${repository}/blob/main/${path.join('docs', inside)}`)
        } else if (!existsSync(target)) {
          throw new Error(`${state.env.relativePath} links to ${href}, which does not exist`)
        } else {
          token.attrSet('href', href.replace('README.md', 'index.md'))
        }
      }
    }
  })
}

// Code in a table may break after _ , = and /: names of settings are longer than a phone is wide. In no code do braces begin an expression
// of Vue.
function breaksInTables(md) {
  const plain = md.renderer.rules.code_inline
  md.renderer.rules.code_inline = (tokens, i, options, env, self) => {
    tokens[i].attrSet('v-pre', '')
    const html = plain(tokens, i, options, env, self)
    return tokens[i].meta?.inTable ? html.replace(/(?<=>[^<]+[_,/=])(?=[^<\s])/g, '<wbr>') : html
  }
  md.core.ruler.push('breaks_in_tables', (state) => {
    let inTable = false
    for (const block of state.tokens) {
      if (block.type === 'table_open') inTable = true
      if (block.type === 'table_close') inTable = false
      for (const token of block.children ?? []) if (inTable && token.type === 'code_inline') token.meta = { inTable }
    }
  })
}

// The bar at the top: its entries, and the headings whose pages belong to each.
const bar = {
  Start: ['Start', 'Install', 'Envoy', 'Migrate'],
  Rules: ['Write rules', 'Test rules'],
  Operate: ['Run', 'Support a customer', 'Troubleshoot'],
  Code: ['From code'],
  Reference: ['Reference'],
  Explanation: ['Explanation'],
}

// An entry of the bar is active on its own pages only. So each heading and each page must belong to exactly one entry.
function navigation(groups) {
  const entries = Object.entries(bar).map(([text, headings]) => ({
    text, links: groups.filter((g) => headings.includes(g.text)).flatMap((g) => g.items.map((item) => item.link)),
  }))
  const links = groups.flatMap((g) => g.items.map((item) => item.link))
  for (const link of links) {
    const of = entries.filter((e) => e.links.includes(link))
    if (of.length !== 1 || links.filter((other) => other === link).length !== 1) {
      throw new Error(`docs/README.md: ${link} must be listed once, under a heading that the bar in config.mjs names once`)
    }
  }
  return entries.map(({ text, links }) => ({ text, link: links[0], activeMatch: `^(${links.join('|')})$` }))
}

// Words that readers search for and pages do not use stand in comments, such as <!-- search: whitelist -->, below the heading that answers.
// GitHub and the pages do not show them. Each word counts three times, because a page that explains it in passing must not come first.
const searched = (text) => text.replace(/<!-- search: (.*?) -->/gs, (_, words) => `${words}, ${words}, ${words}`)

const groups = menu()

export default defineConfig({
  title: 'ratelimitd',
  description: 'A rate limit service for Envoy and everything else',
  // The icon is a part of each page: a bar that is full at the top. Otherwise browsers ask for /favicon.ico.
  head: [['link', { rel: 'icon', href: 'data:image/svg+xml,' + encodeURIComponent('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect x="2" y="9" width="3" height="5" fill="#3451b2"/><rect x="6.5" y="5" width="3" height="9" fill="#3451b2"/><rect x="11" y="2" width="3" height="12" fill="#c0392b"/></svg>') }]],
  srcDir: 'docs',
  srcExclude: offSite.map((folder) => `${folder}**`),
  outDir: 'dist',
  base: process.env.SITE_BASE || '/',
  rewrites: (id) => id.replace(/README\.md$/, 'index.md'),
  markdown: {
    anchor: { slugify: anchor },
    headers: { slugify: anchor },
    config: (md) => { repositoryLinks(md); breaksInTables(md) },
  },
  themeConfig: {
    nav: navigation(groups),
    sidebar: groups.map((g) => ({ ...g, collapsed: g.text !== 'Start' })), // the group of the page that is open opens too
    outline: [2, 3],
    search: {
      provider: 'local',
      options: {
        detailedView: true,
        _render: (text, env, md) => md.render(searched(text), env),
      },
    },
    socialLinks: [{ icon: 'github', link: repository }],
  },
})
