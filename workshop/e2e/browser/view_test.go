package browser_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/workshop/e2e/browser"
)

// view is the size and theme of a window.
type view struct {
	name, scheme  string
	width, height int64
}

// views are a wide window, light and dark, and one as narrow as a phone.
func views(width, height int64) []view {
	return []view{{"wide", "light", width, height}, {"dark", "dark", width, height}, {"narrow", "light", 390, height}}
}

func (v *view) show(t *testing.T, b *browser.Browser) {
	t.Helper()
	b.Paint(t, v.scheme)
	b.Resize(t, v.width, v.height)
}
