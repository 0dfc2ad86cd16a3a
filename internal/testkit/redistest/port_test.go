package redistest

import (
	"net"
	"strconv"
	"testing"
)

// An address without a listener is given to one test at a time: the test of another package runs in another process.
func TestFreeAddrIsReserved(t *testing.T) {
	var taken string
	t.Run("first", func(t *testing.T) {
		taken = FreeAddr(t)
		if portIsFree(t, taken) {
			t.Errorf("%s is given twice", taken)
		}
	})
	if !portIsFree(t, taken) {
		t.Errorf("%s is still reserved after its test", taken)
	}
}

func portIsFree(t *testing.T, address string) bool {
	t.Helper()
	_, text, _ := net.SplitHostPort(address)
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return reserve(t, port)
}
