package explain

import (
	"encoding/json"
	"io"
)

// WriteJSON writes a report for programs.
func WriteJSON(to io.Writer, r *Report) error {
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
