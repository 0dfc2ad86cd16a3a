//go:build !race

package build

const raced = false
