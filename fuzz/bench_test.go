package fuzz

import "testing"

// What a sequence costs before it runs.
func BenchmarkGenerate(b *testing.B) {
	for i := range b.N {
		Generate(1, i, DefaultOps)
	}
}
