package config

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// MaxBucketOrder is the most keys that the `order` of `quota_buckets` may have. Descriptors have at most as many
// levels.
const MaxBucketOrder = yamlform.MaxLevels

// quotaBucketsForm is the map of `quota_buckets`.
var quotaBucketsForm = yamlform.NewForm("quota_buckets", "`quota_buckets`", []yamlform.Field[descriptor.QuotaBuckets]{
	{Key: yamlform.Key{Name: "order", Type: yamlform.Type{Kind: yamlform.TextList}, Extension: true,
		Doc: "the keys of a bucket's ID, in the order of the rule's levels. Other keys follow, sorted"},
		Read: func(q *descriptor.QuotaBuckets, v yamlform.Value) { q.Order = readBucketOrder(v) }},
	{Key: yamlform.Key{Name: "default", Type: yamlform.OneOf("allow", "deny"), Extension: true,
		Default: "`allow`", Doc: "the answer for buckets that no rule matches"},
		Read: func(q *descriptor.QuotaBuckets, v yamlform.Value) {
			i, _ := v.Choice()
			q.Deny = i == 1
		}},
}...)

func readQuotaBuckets(v yamlform.Value) *descriptor.QuotaBuckets {
	q := new(descriptor.QuotaBuckets)
	yamlform.Read(v, quotaBucketsForm, q)
	return q
}

func readBucketOrder(v yamlform.Value) (order []string) {
	switch {
	case !v.IsList():
		v.Errorf("`order` must be a list, not %s: write keys of bucket ids, such as `[plan, user]`", v.What())
		return nil
	case v.Len() == 0:
		v.Errorf("`order` is empty: write keys of bucket ids, such as `[plan, user]`, or leave it out")
		return nil
	case v.Len() > MaxBucketOrder:
		v.Errorf("`order` has %d keys, %d are the most, because rules have no more levels: leave out the others", v.Len(),
			MaxBucketOrder)
		return nil
	}
	for item := range v.Items() {
		key, ok := item.Text()
		switch {
		case !ok:
		case key == "":
			item.Errorf("an empty text in `order`: write a key of bucket ids, or leave it out")
		case descriptor.HasWildcard(key):
			item.Errorf("`order` names keys exactly, so a * in them is not a wildcard: write each key, or leave %s out: keys "+
				"that are not named follow", yamlform.Quote(key))
		case slices.Contains(order, key):
			item.Errorf("%s twice in `order`: leave out one of them", yamlform.Quote(key))
		default:
			order = append(order, key)
		}
	}
	return order
}
