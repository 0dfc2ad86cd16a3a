// Package problem writes the body of a denied request: application/problem+json (RFC 9457), with the problem types of
// draft-ietf-httpapi-ratelimit-headers.
package problem

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// Type is a problem type.
type Type string

// The types of the draft.
const (
	QuotaExceeded   Type = "quota-exceeded"
	ReducedCapacity Type = "temporary-reduced-capacity" // the counters could not be read
	AbnormalUsage   Type = "abnormal-usage-detected"    // a penalty is active
)

// ContentType is the type of the body.
const ContentType = "application/problem+json"

// Write writes the answer. limit is the value of the RateLimit header, whose policy the body names; it may be empty.
func Write(w http.ResponseWriter, status int, t Type, title, limit string) {
	body := struct {
		Type     string   `json:"type"`
		Title    string   `json:"title"`
		Status   int      `json:"status"`
		Violated []string `json:"violated-policies,omitempty"`
	}{Type: "https://iana.org/assignments/http-problem-types#" + string(t), Title: title, Status: status}
	if quoted, err := strconv.QuotedPrefix(limit); err == nil {
		if name, err := strconv.Unquote(quoted); err == nil {
			body.Violated = []string{name}
		}
	}
	w.Header().Set("Content-Type", ContentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(&body) // texts can always be encoded, and a client that has gone is not an error
}
