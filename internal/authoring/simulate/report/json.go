package report

import (
	"encoding/json"
	"io"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
)

// WriteJSON writes a report for programs.
func WriteJSON(to io.Writer, r *simulate.Report) error {
	e := json.NewEncoder(to)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
