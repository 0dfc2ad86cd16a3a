package report

import (
	"bufio"
	"crypto/sha256"
	_ "embed" // the parts of the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/platform/javascript"
)

var (
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
)

var (
	uPlotJS      = javascript.Text("uplot/uPlot.js")
	uPlotCSS     = javascript.Text("uplot/uPlot.css")
	uPlotLicense = javascript.Text("uplot/LICENSE")
)

// chartData is the input of the page's scripts.
type chartData struct {
	Start        int64   `json:"start"` // seconds since 1970
	Width        int64   `json:"width"` // seconds
	Requests     []int64 `json:"requests"`
	Refused      []int64 `json:"refused"`
	NewlyRefused []int64 `json:"newlyRefused,omitempty"`
	NewlyPassed  []int64 `json:"newlyPassed,omitempty"`
}

func charts(r *simulate.Report) *chartData {
	o := &r.OverTime
	return &chartData{
		Start: o.Start.Unix(), Width: o.WidthSeconds, Requests: o.Requests, Refused: o.Refused,
		NewlyRefused: o.NewlyRefused, NewlyPassed: o.NewlyPassed,
	}
}

// WriteHTML writes a report as a self-contained page.
func WriteHTML(to io.Writer, r *simulate.Report) error {
	data, err := json.Marshal(charts(r))
	if err != nil {
		return fmt.Errorf("write the charts' data: %w", err)
	}
	buffered := bufio.NewWriter(to) // a page is rendered in thousands of little pieces
	if err = newView(r).page(string(data)).Render(buffered); err == nil {
		_ = buffered.WriteByte('\n') // its error is Flush's
		err = buffered.Flush()
	}
	if err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// hash returns the name of a script or style in a content security policy.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
