package address_test

import (
	"net/netip"
	"testing"

	"github.com/ratelimitd/ratelimitd/middleware/internal/address"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48"), netip.MustParsePrefix("fe80::/10")}

func TestClient(t *testing.T) {
	for _, c := range []struct {
		name, peer string
		lines      []string
		trusted    []netip.Prefix
		want       string // empty for no address
	}{
		{"no proxy is trusted", "192.0.2.1:5000", []string{"198.51.100.7"}, nil, "192.0.2.1"},
		{"a client writes the header itself", "192.0.2.1:5000", []string{"198.51.100.7"}, proxies, "192.0.2.1"},
		{"a proxy", "10.0.0.1:5000", []string{"198.51.100.7"}, proxies, "198.51.100.7"},
		{"a client writes the beginning", "10.0.0.1:5000", []string{"203.0.113.9, 198.51.100.7"}, proxies, "198.51.100.7"},
		{"a client writes an address of a proxy", "10.0.0.1:5000", []string{"203.0.113.9, 10.9.9.9, 198.51.100.7"}, proxies, "198.51.100.7"},
		{"two proxies", "10.0.0.1:5000", []string{"198.51.100.7, 10.0.0.2"}, proxies, "198.51.100.7"},
		{"several lines", "10.0.0.1:5000", []string{"203.0.113.9", "198.51.100.7, 10.0.0.3", "10.0.0.2"}, proxies, "198.51.100.7"},
		{"proxies only", "10.0.0.1:5000", []string{"10.0.0.3, 10.0.0.2"}, proxies, "10.0.0.3"},
		{"no header", "10.0.0.1:5000", nil, proxies, "10.0.0.1"},
		{"garbage", "10.0.0.1:5000", []string{"198.51.100.7, nonsense"}, proxies, "10.0.0.1"},
		{"garbage behind a proxy", "10.0.0.1:5000", []string{"unknown, 10.0.0.2"}, proxies, "10.0.0.2"},
		{"garbage of the client", "10.0.0.1:5000", []string{"<script>, 999.1.1.1, 198.51.100.7"}, proxies, "198.51.100.7"},
		{"empty elements", "10.0.0.1:5000", []string{"", "198.51.100.7,, ,", " "}, proxies, "198.51.100.7"},
		{"spaces and tabs", "10.0.0.1:5000", []string{"1.1.1.1,\t 198.51.100.7 \t"}, proxies, "198.51.100.7"},
		{"a port", "10.0.0.1:5000", []string{"198.51.100.7:1234"}, proxies, "198.51.100.7"},
		{"IPv6", "[2001:db8:ffff::1]:5000", []string{"2001:db8::7"}, proxies, "2001:db8::7"},
		{"IPv6 in brackets", "[2001:db8:ffff::1]:5000", []string{"[2001:db8::7]"}, proxies, "2001:db8::7"},
		{"IPv6 with a port", "[2001:db8:ffff::1]:5000", []string{"[2001:db8::7]:99"}, proxies, "2001:db8::7"},
		{"one form", "[2001:db8:ffff::1]:5000", []string{"2001:0DB8:0:0::0007"}, proxies, "2001:db8::7"},
		{"zones", "[fe80::1%eth0]:5000", []string{"fe80::9%eth1, [fe80::2%eth2]:80"}, proxies, "fe80::9"},
		{"the zone of a client", "10.0.0.1:5000", []string{"2001:db8::7%1234"}, proxies, "2001:db8::7"},
		{"IPv4 in IPv6", "[::ffff:10.0.0.1]:5000", []string{"::ffff:198.51.100.7"}, proxies, "198.51.100.7"},
		{"a peer without a port", "192.0.2.1", nil, nil, "192.0.2.1"},
		{"a unix socket", "@", []string{"198.51.100.7"}, proxies, "198.51.100.7"},
		{"a unix socket without proxies", "@", []string{"198.51.100.7"}, nil, ""},
		{"a unix socket without the header", "@", nil, proxies, ""},
		{"a peer that is no address", "pipe", []string{"198.51.100.7"}, proxies, ""},
	} {
		got, ok := address.Client(c.peer, c.lines, c.trusted)
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("%s: %s %v, want %q", c.name, got, ok, c.want)
		}
	}
}

// A client can write any addresses before the part of the proxies, but it cannot choose the address that Client
// returns.
func FuzzClientCannotChoose(f *testing.F) {
	f.Add("203.0.113.9")
	f.Add("10.0.0.9, 203.0.113.9,")
	f.Fuzz(func(t *testing.T, written string) {
		if got, _ := address.Client("10.0.0.1:5000", []string{written + ", 198.51.100.7, 10.0.0.2"}, proxies); got.String() != "198.51.100.7" {
			t.Errorf("X-Forwarded-For: %q: %s", written, got)
		}
	})
}
