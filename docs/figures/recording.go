package main

import (
	"encoding/xml"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
)

// recording draws a terminal in which the commands of docs/learn/first-limit.md run. A test of the page holds what they
// print, so the recording shows what happens.
func recording(docs string) string {
	page, err := os.ReadFile(filepath.Join(docs, "learn", "first-limit.md"))
	if err != nil {
		log.Fatal(err)
	}
	const columns, lineHeight, top, letter = 94, 19.0, 44.0, 7.83
	const typing, pause = 0.022, 0.5 // seconds for a letter, and after a command's output
	var lines strings.Builder
	at, y := 0.4, top
	line := func(class, text string, seconds float64) {
		fmt.Fprintf(&lines, `<text class="%s" x="18" y="%.0f" xml:space="preserve" style="animation: %s %.2fs %.2fs both">%s</text>`+"\n",
			class, y, class, max(seconds, 0.01), at, escaped(text))
		y += lineHeight
		at += seconds
	}
	for i, block := range strings.Split(string(page), "\n```console\n")[1:] {
		block, _, _ = strings.Cut(block, "```\n")
		for text := range strings.Lines(block) {
			text = strings.TrimSuffix(text, "\n")
			typed := strings.HasPrefix(text, "$ ")
			if i == 0 || typed && !strings.Contains(text, "ratelimitd") && !strings.Contains(text, "curl") {
				continue // what prepares the rest
			}
			class, seconds := "out", 0.0
			switch {
			case typed:
				at += pause
				class = "cmd"
			case text == "429":
				class = "no"
			}
			for {
				part := text
				if len(part) > columns {
					part = part[:columns]
				}
				if typed {
					seconds = typing * float64(len(part))
				}
				line(class, part, seconds)
				if text = text[len(part):]; text == "" {
					break
				}
			}
		}
	}
	width, height := 2*18+letter*columns, y
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="13" role="img">
<title>A terminal: the rules are checked, the service starts, three requests pass and the fourth is denied with 429</title>
<style>
@keyframes cmd { from { clip-path: inset(0 100%% 0 0) } to { clip-path: inset(0 0 0 0) } }
@keyframes out { from { opacity: 0 } to { opacity: 1 } }
@keyframes no { from { opacity: 0 } to { opacity: 1 } }
.cmd { fill: #fff } .out { fill: #b6bcc6 } .no { fill: #ff7b72; font-weight: bold }
@media (prefers-reduced-motion: reduce) { text { animation: none !important } }
</style>
<rect width="%[1]d" height="%[2]d" rx="8" fill="#16181d"/>
<circle cx="20" cy="16" r="5" fill="#ff5f57"/><circle cx="38" cy="16" r="5" fill="#febc2e"/><circle cx="56" cy="16" r="5" fill="#28c840"/>
%[3]s</svg>
`, int(width), int(height), lines.String())
}

// escaped is text as XML has it.
func escaped(text string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		log.Fatal(err)
	}
	return b.String()
}
