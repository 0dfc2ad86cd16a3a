package destination

import (
	"strings"
	"testing"
)

func TestSettingsThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	const secret = "hunter2"
	for name, c := range map[string]struct {
		opts Options
		want string
	}{
		"a scheme":      {Options{To: "ftp://u:" + secret + "@h/"}, "the scheme of a webhook's URL must be http or https"},
		"a broken URL":  {Options{To: "https://u:" + secret + "@h/%zz"}, "the webhook's URL is invalid: it must have the form https://host/path"},
		"no host":       {Options{To: "https:///" + secret}, "the webhook's URL is invalid"},
		"a directory":   {Options{To: dir}, "is not a regular file"},
		"no directory":  {Options{To: dir + "/none/events.jsonl"}, "no such file or directory"},
		"no headers":    {Options{To: "https://h/", HeadersFile: dir + "/none"}, "read the file of headers: open"},
		"headers alone": {Options{To: "stdout", HeadersFile: dir + "/none"}, "only the requests to a webhook have headers"},
	} {
		_, err := Open(c.opts)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want an error with %q and without the secret", name, err, c.want)
		}
	}
}
