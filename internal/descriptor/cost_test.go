package descriptor

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// The weights of a language model: cached input is cheap, output is dear.
var tokens = Cost{{"cached", 100_000}, {"input", WeightOne}, {"output", 4 * WeightOne}}

func TestCost(t *testing.T) {
	for name, test := range map[string]struct {
		cost    Cost
		amounts []Amount
		want    uint64
	}{
		"nothing":                 {tokens, nil, 0},
		"one kind":                {tokens, []Amount{{"output", 3}}, 12},
		"rounded up once":         {tokens, []Amount{{"cached", 1}, {"input", 2}}, 3},
		"ten tenths are one":      {tokens, []Amount{{"cached", 10}}, 1},
		"without weights":         {nil, []Amount{{"input", 2}, {"output", 3}}, 5},
		"a kind twice":            {tokens, []Amount{{"cached", 5}, {"cached", 5}}, 1},
		"as large as it gets":     {nil, []Amount{{"a", math.MaxUint64}}, math.MaxUint64},
		"larger than 64 bits":     {tokens, []Amount{{"output", math.MaxUint64}}, math.MaxUint64},
		"the sum is larger":       {nil, []Amount{{"a", math.MaxUint64}, {"b", 1}}, math.MaxUint64},
		"a weight of a millionth": {Cost{{"a", 1}}, []Amount{{"a", 1}}, 1},
	} {
		if got, unknown, ok := test.cost.Hits(test.amounts); got != test.want || !ok {
			t.Errorf("%s: %d hits (unknown: %q), want %d", name, got, unknown, test.want)
		}
	}
	if _, unknown, ok := tokens.Hits([]Amount{{"input", 1}, {"outptu", 1}}); ok || unknown != "outptu" {
		t.Errorf("a misspelt kind is worth something; unknown: %q", unknown)
	}
	if got := tokens.Names(); got != "cached, input, output" {
		t.Errorf("names %q", got)
	}
}

// The hits equal exact rational arithmetic, rounded up.
func TestCostIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var cost Cost
		var amounts []Amount
		sum := new(big.Int)
		for i := range rapid.IntRange(1, 26).Draw(t, "kinds") {
			name := string(rune('a' + i))
			w := Weight{name, rapid.Uint64Range(0, MaxWeight).Draw(t, "weight")}
			a := Amount{name, rapid.Uint64().Draw(t, "units")}
			cost, amounts = append(cost, w), append(amounts, a)
			sum.Add(sum, new(big.Int).Mul(new(big.Int).SetUint64(w.Millionths), new(big.Int).SetUint64(a.Units)))
		}
		want := sum.Add(sum, big.NewInt(WeightOne-1))
		want.Div(want, big.NewInt(WeightOne))
		if largest := new(big.Int).SetUint64(math.MaxUint64); want.Cmp(largest) > 0 {
			want = largest
		}
		if got, _, ok := cost.Hits(amounts); !ok || got != want.Uint64() {
			t.Fatalf("%v cost %d, want %s", amounts, got, want)
		}
	})
}
