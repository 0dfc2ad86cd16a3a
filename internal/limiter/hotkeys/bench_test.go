package hotkeys

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkCount counts uses of one rule's keys: of one key, of few, of a hundred thousand drawn evenly, which all find
// no room and push another key out, and of as many drawn as in life (Zipf). denied counts a denial with each.
func BenchmarkCount(b *testing.B) {
	for _, c := range []struct {
		name   string
		keys   int
		zipf   bool
		denied bool
	}{{"one", 1, false, false}, {"hundred", 100, false, false}, {"uniform", 100_000, false, false}, {"zipf", 100_000, true, false}, {"uniform denied", 100_000, false, true}} {
		random := rand.New(rand.NewPCG(1, 2))
		zipf := rand.NewZipf(random, 1.1, 1, uint64(c.keys-1))
		keys := make([][]byte, 1<<16)
		for i := range keys {
			n := random.Uint64N(uint64(c.keys))
			if c.zipf {
				n = zipf.Uint64()
			}
			keys[i] = fmt.Appendf(nil, "bench|user0=customer-%08d|f3600", n)
		}
		for _, parallel := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/parallel=%t", c.name, parallel), func(b *testing.B) {
				b.ReportAllocs()
				t := New(time.Now(), Options{})
				r := t.Rules([]Name{{"bench", "bench.user0", false}})[0]
				if !parallel {
					for i := 0; b.Loop(); i++ {
						r.Count(0, keys[i%len(keys)], 1, c.denied)
					}
				} else {
					b.RunParallel(func(pb *testing.PB) {
						lane := rand.Uint32()
						for i := rand.IntN(len(keys)); pb.Next(); i++ {
							r.Count(lane, keys[i%len(keys)], 1, c.denied)
						}
					})
				}
				b.ReportMetric(100*float64(t.dropped.Load())/float64(b.N), "%dropped")
			})
		}
	}
}
