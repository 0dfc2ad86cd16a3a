//go:build !goexperiment.jsonv2

package accesslog

import "testing"

// besideJSON has nothing to compare with: encoding/json/jsontext needs GOEXPERIMENT=jsonv2.
func besideJSON(*testing.B, []byte) {}
