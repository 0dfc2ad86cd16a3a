package main

import (
	"os"
	"testing"
)

// The committed pictures are the ones that today's arithmetic draws.
func TestPicturesAreUpToDate(t *testing.T) {
	for name, draw := range figures {
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != draw() {
			t.Errorf("%s is not what the code draws: go run ./docs/figures", name)
		}
	}
}
