package descriptor_test

import (
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A tree is compiled once and then matched by any number of goroutines.
func Example() {
	perMinute := func(n uint64) *descriptor.Rule {
		return &descriptor.Rule{Limits: []descriptor.Limit{{Requests: n, Window: descriptor.Window{Unit: descriptor.Minute}}}}
	}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{
		Name: "shop",
		Children: []descriptor.NodeSpec{
			{Key: "user", Rule: perMinute(60)},               // any user
			{Key: "user", Value: "ann", Rule: perMinute(10)}, // this user
		},
	}}, descriptor.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}

	for _, user := range []string{"ann", "bob"} {
		entries := []descriptor.Entry{{Key: "user", Value: user}}
		rule := tree.Domain("shop").Match(entries)
		key := descriptor.KeyBuilder{}.AppendKey(nil, "shop", entries, rule, &rule.Limits[0])
		fmt.Println(rule.Path, rule.Limits[0].Requests, string(key))
	}
	// Output:
	// shop.user_ann 10 shop|user=ann|f60
	// shop.user 60 shop|user=bob|f60
}
