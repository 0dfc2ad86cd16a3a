package regions_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
)

// BenchmarkStart measures the cost of regions for a take that this region counts. Takes with and without the regions
// store alternate; the result is in ns a take, and as a ratio.
func BenchmarkStart(b *testing.B) {
	plain := memory.New(memory.Options{})
	s, err := regions.New(regions.Options{Store: memory.New(memory.Options{}), Region: "eu", Regions: []string{"eu", "us"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	for name, of := range map[string]*descriptor.Regions{
		"without regions": nil, "at home": {Mode: descriptor.AtHome, Home: "eu"}, "by hash": {Mode: descriptor.AtHome},
	} {
		b.Run(name, func(b *testing.B) {
			l := &descriptor.Limit{Requests: 1 << 40, Window: descriptor.Window{Unit: descriptor.Year}, Regions: of}
			key := []byte("d|k=1234567|f31536000")
			for n := 0; of != nil && of.Home == "" && regions.HomeOf(key, []string{"eu", "us"}) != "eu"; n++ {
				key[4] = byte('0' + n)
			}
			r := backend.Request{Takes: []backend.Take{{Key: key, Limit: l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
			took := [2]time.Duration{}
			const turn = 1000
			b.ReportAllocs()
			for range (b.N + turn - 1) / turn {
				for i, store := range []backend.Store{plain, s} {
					began := time.Now()
					for range turn {
						if settled, err := store.Start(b.Context(), began, nil, &r, nil); !settled || err != nil {
							b.Fatal(settled, err)
						}
					}
					took[i] += time.Since(began)
				}
			}
			b.ReportMetric(float64(took[1])/float64(took[0]), "times")
		})
	}
}
