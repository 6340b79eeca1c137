// The shader clock, measured: shader cycles against the 100 MHz counter, while every compute unit is busy.
//
// Why: on a BC-250 with eight cores unlocked the driver reports 55 MHz, because it reads the clock from the
// wrong place of a table that moved. These two counters cannot be misread: s_memtime counts shader cycles,
// s_memrealtime counts a constant 100 MHz reference (RDNA 1 and 2 instruction set documents, "S_MEMTIME",
// "S_MEMREALTIME"). clock in MHz = cycles / ticks * 100.
//
// Device code only and no header needed, so that any clang with the AMDGPU target builds it:
//   clang -x hip --offload-arch=gfx1013 --cuda-device-only -nogpuinc -nogpulib -O2 shader_clock.hip -o clock.hsaco
// The host side is bc250studio/board/clock.py (hipModuleLaunchKernel). Only the compiling is tested without
// a board; what it reports on one, nobody has measured yet.

#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __device__
#define __device__ __attribute__((device))
#endif

typedef unsigned long long counter;

// Both counters in one go; the wait makes them final before anything after it is issued.
static __device__ inline void counters(counter *cycles, counter *ticks)
{
    counter c, t;
    __asm__ volatile("s_memtime %0\n\ts_memrealtime %1\n\ts_waitcnt lgkmcnt(0)" : "=&s"(c), "=&s"(t) : : "memory");
    *cycles = c;
    *ticks = t;
}

// out: two numbers a workgroup (elapsed cycles, elapsed 100 MHz ticks), then one float a workgroup that keeps
// the arithmetic alive. iterations: dependent multiply-adds, about five cycles each.
extern "C" __global__ void shader_clock(counter *out, float *kept, unsigned iterations)
{
    unsigned group = __builtin_amdgcn_workgroup_id_x();
    unsigned lane = __builtin_amdgcn_workitem_id_x();
    counter first_cycle, first_tick, last_cycle, last_tick;
    float x = 1.0f + 1e-6f * (float)lane;

    counters(&first_cycle, &first_tick);
    for (unsigned i = 0; i < iterations; ++i)
        x = __builtin_fmaf(x, 0.999999f, 1e-6f);
    __asm__ volatile("" : "+v"(x));
    counters(&last_cycle, &last_tick);

    if (lane == 0) {
        out[2 * group] = last_cycle - first_cycle;
        out[2 * group + 1] = last_tick - first_tick;
        kept[group] = x;
    }
}
