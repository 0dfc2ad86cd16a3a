// Package report writes what a simulation found: as text for a terminal (text.go), as JSON (json.go) and as one HTML file
// with charts (html.go, with page.html, page.css and page.js embedded).
//
// The HTML file is complete in itself: the chart library, uPlot (MIT; scripts/update-uplot replaces it), is part of it,
// and its content security policy lets it load nothing. What it shows comes from a log, which is to say from anybody:
// html/template escapes it, and scripts get it as data alone.
//
// All functions may be called concurrently. Nothing is counted here: package simulate does.
package report
