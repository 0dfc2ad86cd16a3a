// Package report writes the Report of a simulation: as text for a terminal, as JSON, as one HTML file with charts, or
// as Markdown for a pull request.
//
// The HTML file is self-contained. The chart library uPlot (MIT; workshop/scripts/javascript updates it) is part of it,
// and its content security policy lets it load nothing. Its content comes from a log, so anybody may have written it.
// The page is built of gomponents' nodes, which escape every text and attribute; scripts receive only numbers.
// html/template would escape as well, but it finds methods by name at run time, and for that the linker keeps every
// exported method of every type: megabytes of them.
//
// All functions may be called concurrently. The package counts nothing; package simulate does.
package report
