// Package report writes the Report of a simulation: as text for a terminal, as JSON, or as one HTML file with charts.
//
// The HTML file is self-contained. The chart library uPlot (MIT; scripts/update-uplot updates it) is part of it, and its
// content security policy lets it load nothing. Its content comes from a log, so anybody may have written it:
// html/template escapes it, and scripts receive it only as data.
//
// All functions may be called concurrently. The package counts nothing; package simulate does.
package report
