// Package matrix sends every feature of the rule language through every way to count, and compares the answers with
// those of plain counters in memory. It has only tests.
//
//	go test ./workshop/matrix -update
//
// writes docs/contributing/matrix.md, which shows which features work under which way to count.
//
// The tests are generated from existing tables: the forms of the rule language (config.Rules), the algorithms
// (descriptor.AlgorithmNames). A key without a feature in features_test.go fails TestEveryKeyHasAFeature; an algorithm
// needs no feature. A way to count is one row of the table in ways_test.go.
//
// TestEveryLayerKnowsEveryFlag asks the stores themselves: each field of a request must have an effect through every
// layer.
//
// Tests pass the time as an argument. Redis servers are real, and use the time of each request as well.
package matrix
