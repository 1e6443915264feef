/* Lorenz' equations by the classical method of Runge and Kutta, in blocks of points. */
enum { BLOCK = 64 };

void lorenz(const float *rho, float *out, long points, long steps) {
  const float h = 0.01f, half = 0.005f, sixth = 0.01f / 6, beta = 8.0f / 3;
  for (long first = 0; first < points; first += BLOCK) {
    float x[BLOCK], y[BLOCK], z[BLOCK], r[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
      x[i] = 1;
      y[i] = z[i] = 0;
      r[i] = rho[first + i];
    }
    for (long step = 0; step < steps; step++) {
#pragma omp simd
      for (int i = 0; i < BLOCK; i++) {
        float ax = 10 * (y[i] - x[i]), ay = x[i] * (r[i] - z[i]) - y[i];
        float az = x[i] * y[i] - beta * z[i];
        float u = x[i] + half * ax, v = y[i] + half * ay, w = z[i] + half * az;
        float bx = 10 * (v - u), by = u * (r[i] - w) - v, bz = u * v - beta * w;
        u = x[i] + half * bx, v = y[i] + half * by, w = z[i] + half * bz;
        float cx = 10 * (v - u), cy = u * (r[i] - w) - v, cz = u * v - beta * w;
        u = x[i] + h * cx, v = y[i] + h * cy, w = z[i] + h * cz;
        float dx = 10 * (v - u), dy = u * (r[i] - w) - v, dz = u * v - beta * w;
        x[i] += sixth * (ax + 2 * bx + 2 * cx + dx);
        y[i] += sixth * (ay + 2 * by + 2 * cy + dy);
        z[i] += sixth * (az + 2 * bz + 2 * cz + dz);
      }
    }
    for (int i = 0; i < BLOCK; i++) {
      out[3 * (first + i)] = x[i];
      out[3 * (first + i) + 1] = y[i];
      out[3 * (first + i) + 2] = z[i];
    }
  }
}
