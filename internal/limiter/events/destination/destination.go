package destination

import (
	"errors"
	"io"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
)

// Options select the destination of events.
type Options struct {
	To     string    // required: the URL of a webhook, the path of a file, or stdout
	Stdout io.Writer // where events go with stdout

	// the file with the headers for a webhook, one "Name: value" on each line; it is read for each request. Empty: no
	// headers
	HeadersFile string
}

// SettingError is a setting that cannot be used. It contains neither the URL of a webhook, which may have a secret, nor
// headers.
type SettingError struct {
	Setting string // the field of Options: To or HeadersFile
	Err     error
}

func (e *SettingError) Error() string { return e.Err.Error() }

func (e *SettingError) Unwrap() error { return e.Err }

// Open returns a destination. The error is a *SettingError.
func Open(o Options) (events.Destination, error) {
	to, err := o.open()
	if err != nil {
		return nil, &SettingError{"To", err}
	}
	if _, has := to.(*webhook); o.HeadersFile != "" && !has {
		return nil, &SettingError{"HeadersFile", errors.New("only the requests to a webhook have headers")}
	}
	if _, err := readHeaders(o.HeadersFile); err != nil {
		return nil, &SettingError{"HeadersFile", err}
	}
	return to, nil
}

func (o *Options) open() (events.Destination, error) {
	switch lower := strings.ToLower(o.To); {
	case lower == "stdout":
		return Lines(o.Stdout), nil
	case strings.HasPrefix(lower, "http://"), strings.HasPrefix(lower, "https://"):
		return newWebhook(o)
	case strings.Contains(o.To, "://"):
		return nil, errors.New("the scheme of a webhook's URL must be http or https")
	default:
		return newFile(o.To)
	}
}
